"""What every room stands on: errors, files and compilation. Imports nothing of kvsched."""
