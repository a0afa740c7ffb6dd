"""A cluster as a command reads it: that of a kubeconfig, every failure one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rlguard.cli.errors import CliError
from rlguard.core.extras import missing_extra

REQUEST_SECONDS = 10.0
UNREACHABLE = 1  # exit code

NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace; that of the kubeconfig without it.")
]
KubeconfigOption = Annotated[Path | None, typer.Option("--kubeconfig", help="A file other than kubectl's.")]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="A context of the kubeconfig other than its current one.")
]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A namespace of a cluster; every failure is a `CliError`. `client` is that of the package kubernetes."""

    client: Any
    namespace: str

    def job(self, name: str) -> dict[str, Any]:
        """A GuardedTrainingJob."""
        absent = f"namespace {self.namespace} has no GuardedTrainingJob {name!r}"
        return self._ask("get_namespaced_custom_object", absent, name)

    def jobs(self) -> list[dict[str, Any]]:
        """All GuardedTrainingJobs."""
        absent = f"there are no GuardedTrainingJobs in namespace {self.namespace}: is the operator installed?"
        return list(self._ask("list_namespaced_custom_object", absent)["items"])

    def _ask(self, how: str, absent: str, *name: str) -> dict[str, Any]:
        from kubernetes.client import CustomObjectsApi

        from rlguard.operator.api.names import GROUP, PLURAL, VERSION

        with asking(absent):
            ask = getattr(CustomObjectsApi(self.client), how)
            found: dict[str, Any] = ask(
                *(GROUP, VERSION, self.namespace, PLURAL, *name), _request_timeout=REQUEST_SECONDS
            )
            return found

    @property
    def core(self) -> Any:
        """The API of Kubernetes' own kinds."""
        from kubernetes import client as api

        return api.CoreV1Api(self.client)


def connect(
    namespace: str | None, kubeconfig: Path | None, instead: str, context: str | None = None
) -> Cluster:
    """The cluster of the current context, or of another one; nothing is asked of it yet.

    Args:
        instead: what the user may name in place of a cluster, for the message.

    Raises:
        CliError: the extra is not installed, or there is no kubeconfig that can be read.
    """
    missing = missing_extra("a job on a cluster", ["operator"])
    if missing is not None:
        raise CliError(missing)
    from kubernetes import client as api
    from kubernetes import config

    files: Any = config  # it has no types
    where = str(kubeconfig) if kubeconfig is not None else None
    try:
        configuration = api.Configuration()
        files.load_kube_config(where, context, client_configuration=configuration)
        # `list_kube_config_contexts` needs a current context, which not every kubeconfig has.
        merged = files.kube_config.KubeConfigMerger(where or files.KUBE_CONFIG_DEFAULT_LOCATION).config
        chosen = merged["contexts"].get_with_name(context or merged["current-context"])
        own = chosen["context"].safe_get("namespace")
    except Exception as error:  # the package looks at little of what it reads
        why = " ".join(str(error).split()).rstrip(".")
        raise CliError(f"no cluster: {why}; name {instead}, or a --kubeconfig", UNREACHABLE) from None
    return Cluster(api.ApiClient(configuration), namespace or own or "default")


@contextmanager
def asking(absent: str) -> Iterator[None]:
    """Requests to a cluster.

    Args:
        absent: the sentence for a 404.

    Raises:
        CliError: it refuses, has no such thing, or does not respond.
    """
    from kubernetes.client import ApiException

    try:
        yield
    except CliError:
        raise
    except ApiException as error:
        if error.status == 404:
            raise CliError(absent, UNREACHABLE) from None
        raise CliError(f"the cluster refused: {error.status} {error.reason}", UNREACHABLE) from None
    except Exception as error:  # urllib3's errors, which the client does not wrap
        raise CliError(f"the cluster does not respond: {error}", UNREACHABLE) from None
