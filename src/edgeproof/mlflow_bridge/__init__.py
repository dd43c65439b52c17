"""MLflow as a record of deployment evaluations: never the root of trust, and never needed.

What goes to MLflow is made of sealed evidence (`record`), written once (`log`), read back (`fetch`) and held against
the evidence again (`audit`). Whoever can write to a tracking server can change what it says; the evidence file cannot
be changed unnoticed, so it is what counts.
"""
