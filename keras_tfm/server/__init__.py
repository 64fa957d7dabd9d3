"""Serves a translator or a classifier over HTTP: `keras-tfm serve`.

`app` has the HTTP routes and `limits` what they accept. They ask a client of
the model: `local.LocalClient` in the same process, `workers.WorkerClient` in
front of processes of this machine, or `replica.ReplicaClient` in front of
replicas of Ray Serve. All run an `engine.Engine`.

FastAPI and uvicorn come with the extra `serve`, Ray with `cluster`; nothing
here is imported before a server starts.
"""
