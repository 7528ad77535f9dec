"""Files with images inside that are no archives: Parquet files and MDS shards."""
