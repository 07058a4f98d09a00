"""jupyter-book as a module to run: its command has no ``__main__`` of its own."""

from jupyter_book.cli.main import main

if __name__ == "__main__":
    main()
