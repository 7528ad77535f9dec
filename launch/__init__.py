"""What people start: the command line, the demo, trainings, and the files for each platform.

Here: argument parsing, output on the terminal, and launchers for Dataflow, Flink and Airflow.
Not here: anything that a library user would import.
"""
