"""Pictures for training: readers of folders, files and layouts, and scenes that are composed."""
