"""What a build is: options, graph, metadata, run."""
