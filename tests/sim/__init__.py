"""A simulator of the whole service: random histories from seeds, in one process and in virtual time.

- ``scheduler``: virtual time, and actors of which one runs at a time.
- ``world``: what is replaced in the modules under test.
- ``broker``, ``clients``, ``readers``: the model of Kafka, and the clients that the code under test gets.
- ``spark_model``, ``service_model``, ``programs``: Spark, the driver and its operator, other teams' programs.
- ``scenario``, ``faults``: what a seed means.
- ``run_one``, ``checker``, ``history``: one seed, its judge, its story.
- ``mutants``: defects that are put in on purpose; each must be found.

It is made like the simulators of FoundationDB and TigerBeetle, and its checker like those of Jepsen: real
code against models of what is around it, faults from a seed, and a judge that only sees what went in and
what came out.
"""
