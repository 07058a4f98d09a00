"""How data gets here: found or fetched, checked, opened and cached."""
