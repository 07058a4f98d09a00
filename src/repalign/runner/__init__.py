"""From notebook sources to a rendered book: find pages, execute them, keep records, render."""
