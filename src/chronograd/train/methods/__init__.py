"""Published methods that are more than a recipe: one file each."""
