"""What needs a real cluster and no scenario on kind holds, written as given / when / then.

    def test_a_fire_stops_the_run(namespace):
        job = given.a_scripted_run(namespace, deaf=True)
        when.the_trainer_fires(job)
        then.the_job_has_fired(job, "KlHardStop")
        then.the_job_is_stopped(job)

Vocabulary, all plain functions over the handles of kube.py (`Cluster`, `Namespace`, `Job`):

given   a_scripted_run, a_submitted_run (scripted_trainer.py has the orders), the_demo_with,
        a_run_with_one_round, a_grpo_run_that_fires, a_claim, a_claim_with_the_heldout_split, objects
when    the_trainer_is_told, the_trainer_fires, the_trainer_is_killed, the_guard_is_killed,
        the_pod_is_deleted, the_pod_is_evicted, the_operator_is_away
faults  of the cluster itself, undone afterwards: the_api_server_is_away, the_training_operator_is_away,
        the_kubelet_is_away
then    eventually, the_condition_is, the_phase_is, the_job_has_fired, the_job_is_stopped,
        the_job_never_fired, the_guard_has_counted, the_guard_has_evaluated, the_log_says,
        a_container_runs, a_container_runs_again, the_pod_was_replaced, it_was_told_once, events, evidence
walk    the README's walk as it is printed: takes, watches, deletes_all

Fixtures (conftest.py): `cluster`, `installation` (the chart installed), `namespace` (fresh, gone after the
test), `demo` (the namespace that the walk makes). Every time-out has a name in
timeouts.py. artefacts.py keeps what a failed test leaves, in build/e2e/<test>/. RLGUARD_E2E=<json of
cluster/up.sh> uses a cluster that is there.

run.sh runs them three at a time: the cluster has two cores, and most of a test is waiting. What takes the
operator, the API server or the training-operator away is marked `alone` and runs afterwards, one by one; a
fault refuses to be made beside another test.
"""
