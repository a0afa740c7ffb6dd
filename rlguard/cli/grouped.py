"""A help text whose options stand in groups, those that matter most first."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

_ARGUMENTS, _OTHERS = "Arguments", "Other options"
GROUPS = {
    "Most used": ("heldout", "checkpoints", "out", "scorer", "proxy_scorer"),
    "A trainer that is followed": ("follow", "format_", "run_config", "column"),
    "Evaluation": (
        *("train_prompts", "max_new_tokens", "temperature", "stop", "samples", "batch_size", "device"),
        *("base_model", "chat", "chat_template_kwargs", "system_prompt", "answer_after", "vllm"),
        *("scorer_timeout", "on_scorer_timeout", "backlog", "evaluations_token_file"),
    ),
}


class GroupedCommand(TyperCommand):
    """A command that shows its options in `GROUPS`, by the names of their parameters."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        group_of = {name: heading for heading, names in GROUPS.items() for name in names}
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in (_ARGUMENTS, *GROUPS, _OTHERS)}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                argument = parameter.param_type_name == "argument"
                groups[_ARGUMENTS if argument else group_of.get(parameter.name or "", _OTHERS)].append(record)
        for heading, records in groups.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
