"""Amazon S3 and Azure Blob Storage: the requests that `ObjectStore` makes, by their own clients.

Both identify a version of an object by an ETag, a text. Its stamp is a hash of the ETag.
"""
