"""A wait for several objects, as a type checker sees it. tools/python lint checks it."""

import baton


def works(jobs: baton.Queue, stop: baton.Reader, named: baton.Watch) -> object:
    for x in baton.wait_any([stop, jobs]):
        job = x.get(timeout=0) if x is jobs else x.receive(timeout=0).value
    baton.wait_any([stop, jobs, named], timeout=0)
    for q in baton.wait_any([jobs, jobs]):
        job = q.get(timeout=0)
    return job
