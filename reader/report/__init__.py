"""The report of a data set: one HTML page with samples and statistics, as a file or served.

Here: the data of the page, its pictures, and the server of `imageshards inspect --serve`. Not here:
the statistics themselves (`transforms.shards.profile`), and when a build writes the report
(`pipeline.report`).
"""
