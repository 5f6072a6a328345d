"""Sets of runs: what names them, and where they run: on this machine or on a cluster.

``grid`` reads the overrides of a command, ``bases`` finds the runs that others begin from, and a
``run_spec`` is one run; ``runnable`` says which can run. ``execute`` does what the options of a
command say: ``local`` runs in processes here, ``slurm`` submits job arrays, with a ``job_script``
of the ``cluster``'s settings that runs a ``snapshot`` of the code. ``queue`` and ``status`` tell
what has become of them, and ``collect`` keeps their records. ``submit_file`` is a command for a
single job.
"""
