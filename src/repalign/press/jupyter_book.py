"""jupyter-book as a module to run: its command has no ``__main__`` of its own."""

if __name__ == "__main__":
    # Only to run: its import warns, which whoever collects examples in docstrings takes for an error.
    from jupyter_book.cli.main import main

    main()
