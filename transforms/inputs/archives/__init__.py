"""Archives: tars, also in the format of WebDataset, and zips. Images are read in place."""
