"""The templates in launch/ fit the schemas of the programs that read them, their own parts and the command line."""

import re

import pytest
from document_commands import problems_with
from launch_files import TEMPLATES, commands, documents, objects, only, options, pods, shell, text, words_of
from launch_schemas import RayUp, SkyGroup, SkyTask
from typer.main import get_command

from spotlight.config import load_config
from spotlight.pools.config import ClusterConfig
from spotlight.pools.processes import REAP_S
from spotlight.pools.ray import SPOT_MARKS
from spotlight.surface.cli.main import app
from spotlight.surface.cli.overrides import dotted

KUBERNETES = [name for name in TEMPLATES if name.startswith("kube")]
RAY_DRAIN_S = 30
"""Default of RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S."""
PORT, BLOB_PORT = 7700, 7701


# -- commands ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_command_of_a_template_exists_with_its_options_and_arguments(template):
    assert commands(template)
    assert [problem for command in commands(template) for problem in problems_with(command)] == []
    verbs = get_command(app).commands  # type: ignore[attr-defined]
    for verb, *rest in map(words_of, commands(template)):
        # Missing arguments and values of a wrong type raise.
        verbs[verb].make_context(verb, rest)


@pytest.mark.parametrize("template", [name for name in TEMPLATES if " train " in "".join(commands(name))])
def test_settings_of_a_template_make_a_run(template):
    command = only(template, "train").replace("$PORT", str(PORT)).replace("$RECIPE", "words-nft")
    _, recipe, *rest = words_of(command)
    cluster = load_config(recipe, dotted(rest)).cluster
    wanted = {"docker": ("local", None), "ray": ("ray", None), "kuberay": ("ray", None)}
    where = template.partition("/")[0]
    assert (cluster.pool, cluster.listen) == wanted.get(where, ("join", f"0.0.0.0:{PORT}"))


@pytest.mark.parametrize("template", TEMPLATES)
def test_template_names_no_registry_and_no_folder_of_one_machine(template):
    assert re.findall(r"\b[\w-]+\.(?:io|com|dev|org|net)/[\w-]+/|/(?:work|root|home)/(?!ubuntu)", text(template)) == []


@pytest.mark.parametrize("template", [name for name in TEMPLATES if "pip install --python" in text(name)])
def test_template_that_installs_the_checkout_installs_its_weights_and_models_too(template):
    installs = [line for line in text(template).splitlines() if "pip install --python" in line]
    assert all("/assets" in line for line in installs)


# -- Kubernetes and KubeRay --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", KUBERNETES)
def test_mounts_volumes_and_claims_of_a_pod_refer_to_one_another(template):
    claims = {each["metadata"]["name"] for each in documents(template) if each["kind"] == "PersistentVolumeClaim"}
    for pod, _ in pods(template):
        volumes = {volume.name for volume in pod.volumes}
        for container in pod.containers:
            assert {mount.name for mount in container.volumeMounts} == volumes
            # A container has 64 MB otherwise.
            assert "/dev/shm" in {mount.mountPath for mount in container.volumeMounts}
        claimed = {volume.persistentVolumeClaim.claimName for volume in pod.volumes if volume.persistentVolumeClaim}
        assert claimed <= claims


@pytest.mark.parametrize("template", KUBERNETES)
def test_disk_with_the_run_s_key_keeps_its_modes_when_it_is_mounted_again(template):
    for pod, _ in pods(template):
        context = pod.securityContext
        assert (context.fsGroup is None) or context.fsGroupChangePolicy == "OnRootMismatch"
        has_disk = any(volume.persistentVolumeClaim for volume in pod.volumes)
        states = [each.value for container in pod.containers for each in container.env if each.name == "XDG_STATE_HOME"]
        assert states == (["/data/state"] if has_disk else [])


@pytest.mark.parametrize("template", ["kubernetes/spot.yaml", "kuberay/raycluster.yaml"])
def test_pods_on_spot_nodes_tolerate_the_taint_of_the_nodes_that_they_select(template):
    selected = [pod for pod, _ in pods(template) if pod.nodeSelector]
    assert len(selected) == 1
    (pod,) = selected
    assert {each.key: each.value for each in pod.tolerations} == pod.nodeSelector


def test_service_leads_to_the_ports_at_which_the_trainer_listens():
    parts = objects("kubernetes/trainer.yaml")
    service, job = parts["Service"], parts["Job"]
    ((pod, labels),) = pods("kubernetes/trainer.yaml")
    assert service.spec.selector.items() <= labels.items()
    assert [port.targetPort for port in service.spec.ports] == [PORT, BLOB_PORT]
    assert [port.port for port in service.spec.ports] == [PORT, BLOB_PORT]
    assert [port.containerPort for port in pod.containers[0].ports] == [PORT, BLOB_PORT]
    assert pod.restartPolicy == "Never", "Kubernetes allows a podFailurePolicy with this one alone"
    (rule,) = [rule for rule in job.spec.podFailurePolicy.rules if rule.onExitCodes]
    assert rule.onExitCodes.containerName == pod.containers[0].name
    assert 4 not in rule.onExitCodes.values, "a run that has stopped is resumed by the next pod"


def test_pods_that_join_dial_the_service_with_the_secret_that_the_trainer_s_remarks_create():
    ((pod, labels),) = pods("kubernetes/spot.yaml")
    deployment = objects("kubernetes/spot.yaml")["Deployment"]
    service = objects("kubernetes/trainer.yaml")["Service"]
    assert deployment.spec.selector.matchLabels.items() <= labels.items()
    assert words_of(only("kubernetes/spot.yaml", "join"))[1] == f"{service.metadata.name}:{PORT}"
    (secret,) = [volume for volume in pod.volumes if volume.secret]
    created = re.search(r"create secret generic (\S+) --from-file=(\S+)=", text("kubernetes/trainer.yaml"))
    assert created is not None
    (mount,) = [mount for mount in pod.containers[0].volumeMounts if mount.name == secret.name]
    assert secret.secret.secretName == created[1]
    assert f"{mount.mountPath}/{created[2]} " in shell(pod.containers[0])


def test_pod_that_joins_has_the_time_to_hand_its_samples_back():
    ((pod, _),) = pods("kubernetes/spot.yaml")
    assert pod.terminationGracePeriodSeconds >= ClusterConfig().drain_s + REAP_S


def test_pod_of_ray_announces_its_end_where_the_run_looks_and_waits_as_long_as_it_says():
    ((pod, _),) = [each for each in pods("kuberay/raycluster.yaml") if each[0].nodeSelector]
    script = pod.containers[0].lifecycle.preStop.exec.command[2]
    announced, path, slept = re.fullmatch(r"echo (\d+) > (\S+); sleep (\d+)", script).groups()
    assert announced == slept
    assert pod.terminationGracePeriodSeconds >= int(slept) + RAY_DRAIN_S
    assert options(only("kuberay/raycluster.yaml", "train"))["--cluster.notices"] == f"file:{path}"


def test_spot_groups_of_ray_have_the_label_of_spot_nodes_and_a_supported_version():
    cluster = objects("kuberay/raycluster.yaml")["RayCluster"].spec
    (group,) = cluster.workerGroupSpecs
    assert group.minReplicas <= group.replicas <= group.maxReplicas
    assert [f"{key}={value}" for key, value in group.labels.items()] == [SPOT_MARKS[0]]
    assert (2, 58) <= tuple(map(int, cluster.rayVersion.split(".")[:2])) < (2, 62)


# -- `ray up` and SkyPilot ---------------------------------------------------------------------------------------------


def test_ray_up_has_its_head_on_demand_and_labels_its_spot_workers():
    (document,) = documents("ray/cluster.yaml")
    cluster = RayUp.model_validate(document)
    head = cluster.available_node_types[cluster.head_node_type]
    ((name, spot),) = [each for each in cluster.available_node_types.items() if each[0] != cluster.head_node_type]
    assert (head.node_config.InstanceMarketOptions, head.max_workers) == (None, 0)
    assert spot.node_config.InstanceMarketOptions is not None, name
    assert 0 < spot.min_workers <= spot.max_workers <= cluster.max_workers
    assert [f"{key}={value}" for key, value in spot.labels.items()] == [SPOT_MARKS[0]]
    assert f"--labels={SPOT_MARKS[0]}" in cluster.worker_start_ray_commands[-1]
    ports = [re.search(r"(?:--port=|RAY_HEAD_IP:)(\d+)", each[-1])[1] for each in (
        cluster.head_start_ray_commands, cluster.worker_start_ray_commands
    )]  # fmt: skip
    assert ports[0] == ports[1]


def test_sky_trainer_stays_and_opens_both_ports_and_its_spot_task_joins_there():
    (trainer,), (spot,) = (
        [SkyTask.model_validate(each) for each in documents(f"skypilot/{name}.yaml")] for name in ("trainer", "spot")
    )
    assert (trainer.resources.use_spot, spot.resources.use_spot) == (False, True)
    assert trainer.resources.ports == [PORT, BLOB_PORT]
    assert set(re.findall(r"\$([A-Z]+)", trainer.run)) <= set(trainer.envs)
    assert set(re.findall(r"\$([A-Z]+)", spot.run)) <= set(spot.envs)
    (target,) = spot.file_mounts
    assert options(only("skypilot/spot.yaml", "join"))["--token-file"] == target
    assert f"chmod 600 {target}\n" in spot.run
    assert f"{trainer.name}):{PORT}" in text("skypilot/spot.yaml"), "the remark names the trainer's cluster and port"
    assert spot.resources.job_recovery.recover_on_exit_codes == [4]
    assert trainer.setup == spot.setup, "each machine needs the same version"


def test_sky_group_ends_with_its_trainer_and_its_spot_task_finds_token_and_trainer():
    header, *tasks = documents("skypilot/group.yaml")
    group, (trainer, spot) = SkyGroup.model_validate(header), map(SkyTask.model_validate, tasks)
    assert group.primary_tasks == [trainer.name]
    assert (trainer.resources.use_spot, spot.resources.use_spot) == (False, True)
    assert trainer.volumes == spot.volumes, "the token travels on it"
    assert words_of(only("skypilot/group.yaml", "join"))[1] == f"{trainer.name}-0.$SKYPILOT_JOBGROUP_NAME:{PORT}"
    assert trainer.envs["XDG_STATE_HOME"].startswith(next(iter(trainer.volumes)))
    for task in (trainer, spot):
        assert set(re.findall(r"\$([A-Z]+)\b", task.run)) <= set(task.envs)
    assert trainer.setup == spot.setup, "each machine needs the same version"
