"""The programs: the command line, the demo, the trainings, and launchers for each platform.

Here: argument parsing, output to the terminal, and launchers for Dataflow, Flink and Airflow.
Not here: anything that a user of the library would import.
"""
