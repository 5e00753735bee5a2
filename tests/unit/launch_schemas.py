"""The parts of other projects' schemas that the templates in launch/ use; an unknown field is an error.

Names and types are those of Kubernetes 1.31, KubeRay 1.5, SkyPilot 0.14 and Ray 2.60.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
Text = Annotated[str, StringConstraints(strict=True, min_length=1)]
Quantity = Annotated[str, StringConstraints(strict=True, pattern=r"^\d+(Ki|Mi|Gi|Ti|m)?$")] | int
Port = Annotated[int, Field(ge=1, le=65535)]
PortName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,14}$")]
Seconds = Annotated[int, Field(ge=0)]
Labels = dict[str, Text]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]*$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


# -- Kubernetes --------------------------------------------------------------------------------------------------------


class Metadata(Strict):
    name: Name


class PodMetadata(Strict):
    labels: Labels


class Environment(Strict):
    name: Variable
    value: str


class ContainerPort(Strict):
    name: PortName
    containerPort: Port


class Resources(Strict):
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]


class Mount(Strict):
    name: Name
    mountPath: Annotated[str, StringConstraints(pattern=r"^/")]
    readOnly: bool = False


class Exec(Strict):
    command: list[str]


class Hook(Strict):
    exec: Exec


class Lifecycle(Strict):
    preStop: Hook


class Container(Strict):
    name: Name
    image: Annotated[str, StringConstraints(pattern=r"^spotlight:[a-z]+$")]
    """A name to replace, built by launch/docker/Dockerfile: no template names a registry."""
    args: list[str] = []
    env: list[Environment] = []
    ports: list[ContainerPort] = []
    resources: Resources
    lifecycle: Lifecycle | None = None
    volumeMounts: list[Mount]


class Claim(Strict):
    claimName: Name


class EmptyDir(Strict):
    medium: Literal["Memory"]
    sizeLimit: Quantity


class SecretSource(Strict):
    secretName: Name


class Volume(Strict):
    name: Name
    persistentVolumeClaim: Claim | None = None
    emptyDir: EmptyDir | None = None
    secret: SecretSource | None = None


class SecurityContext(Strict):
    runAsUser: int
    runAsGroup: int
    fsGroup: int | None = None
    fsGroupChangePolicy: Literal["OnRootMismatch", "Always"] | None = None


class Toleration(Strict):
    key: Text
    operator: Literal["Equal", "Exists"]
    value: str | None = None
    effect: Literal["NoSchedule", "NoExecute", "PreferNoSchedule"]


class Pod(Strict):
    restartPolicy: Literal["Never", "OnFailure", "Always"] = "Always"
    terminationGracePeriodSeconds: Seconds = 30
    nodeSelector: Labels = {}
    tolerations: list[Toleration] = []
    securityContext: SecurityContext
    containers: Annotated[list[Container], Field(min_length=1)]
    volumes: list[Volume]


class PodTemplate(Strict):
    metadata: PodMetadata | None = None
    spec: Pod


class ServicePort(Strict):
    name: PortName
    port: Port
    targetPort: Port


class ServiceSpec(Strict):
    selector: Labels
    ports: list[ServicePort]


class Service(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["Service"]
    metadata: Metadata
    spec: ServiceSpec


class ClaimResources(Strict):
    requests: dict[Literal["storage"], Quantity]


class ClaimSpec(Strict):
    accessModes: list[Literal["ReadWriteOnce", "ReadWriteMany"]]
    resources: ClaimResources


class PersistentVolumeClaim(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["PersistentVolumeClaim"]
    metadata: Metadata
    spec: ClaimSpec


class PodCondition(Strict):
    type: Literal["DisruptionTarget"]
    status: Literal["True", "False", "Unknown"]


class ExitCodes(Strict):
    containerName: Name
    operator: Literal["In", "NotIn"]
    values: list[Annotated[int, Field(ge=0, le=255)]]


class FailureRule(Strict):
    action: Literal["Ignore", "FailJob", "Count"]
    onPodConditions: list[PodCondition] | None = None
    onExitCodes: ExitCodes | None = None


class FailurePolicy(Strict):
    rules: list[FailureRule]


class JobSpec(Strict):
    backoffLimit: int
    podFailurePolicy: FailurePolicy
    template: PodTemplate


class Job(Strict):
    apiVersion: Literal["batch/v1"]
    kind: Literal["Job"]
    metadata: Metadata
    spec: JobSpec


class Selector(Strict):
    matchLabels: Labels


class DeploymentSpec(Strict):
    replicas: Annotated[int, Field(ge=1)]
    selector: Selector
    template: PodTemplate


class Deployment(Strict):
    apiVersion: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec


# -- KubeRay -----------------------------------------------------------------------------------------------------------


class HeadGroup(Strict):
    rayStartParams: dict[str, Text]
    template: PodTemplate


class WorkerGroup(HeadGroup):
    groupName: Name
    replicas: int
    minReplicas: int
    maxReplicas: int
    labels: Labels


class RayClusterSpec(Strict):
    rayVersion: Annotated[str, StringConstraints(strict=True, pattern=r"^\d+\.\d+\.\d+$")]
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup]


class RayCluster(Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: Metadata
    spec: RayClusterSpec


KINDS: dict[str, type[BaseModel]] = {
    model.model_fields["kind"].annotation.__args__[0]: model  # type: ignore[union-attr]
    for model in (Service, PersistentVolumeClaim, Job, Deployment, RayCluster)
}


# -- SkyPilot ----------------------------------------------------------------------------------------------------------


class JobRecovery(Strict):
    strategy: Literal["EAGER_NEXT_REGION", "FAILOVER"]
    recover_on_exit_codes: list[Annotated[int, Field(ge=0, le=255)]]


class SkyResources(Strict):
    accelerators: Annotated[str, StringConstraints(pattern=r"^[A-Z0-9]+:\d+$")]
    use_spot: bool
    ports: list[Port] = []
    job_recovery: JobRecovery | None = None


class SkyTask(Strict):
    name: Name
    workdir: Literal["."]
    resources: SkyResources
    envs: dict[Variable, str]
    file_mounts: dict[str, str] = {}
    volumes: dict[str, Name] = {}
    setup: Text
    run: Text


class SkyGroup(Strict):
    """The first document of a Job Group."""

    name: Name
    execution: Literal["parallel"]
    primary_tasks: list[Name]
    termination_delay: Annotated[str, StringConstraints(pattern=r"^\d+[smh]$")]


# -- `ray up` ----------------------------------------------------------------------------------------------------------


class Provider(Strict):
    type: Literal["aws"]
    region: Text


class Login(Strict):
    ssh_user: Text


class MarketOptions(Strict):
    MarketType: Literal["spot"]


class Disk(Strict):
    VolumeSize: int
    VolumeType: Literal["gp3"]


class DiskMapping(Strict):
    DeviceName: Text
    Ebs: Disk


class Instance(Strict):
    InstanceType: Text
    InstanceMarketOptions: MarketOptions | None = None
    BlockDeviceMappings: list[DiskMapping]


class NodeType(Strict):
    min_workers: int
    max_workers: int
    resources: dict[str, int]
    labels: Labels = {}
    node_config: Instance


class RayUp(Strict):
    cluster_name: Name
    max_workers: int
    provider: Provider
    auth: Login
    head_node_type: str
    available_node_types: dict[str, NodeType]
    file_mounts: dict[str, str]
    rsync_exclude: list[str]
    setup_commands: list[Text]
    head_start_ray_commands: list[Text]
    worker_start_ray_commands: list[Text]
