"""A trainer that does what it is asked, one order a line, with the public `Guard` and without a GPU.

It first obeys the orders of its command line, then those that a test appends to /scratch/orders. A trainer
that finds the step of an earlier pod beside the checkpoints goes on from there and skips its command line.

    steps N [REWARD [KL]]   report N steps
    checkpoint ANSWER [C]   save and report a policy that answers each prompt by ANSWER; with C, its tokenizer
                            turns each character C into a thousand tokens.
    template C              the same, with a chat template that fails, quoting the prompt, where C is in it
    listen                  print all that the guard tells to the trainer's token
    exit CODE               end

It prints `done: ORDER` after each. When the guard asks it to stop it prints `must stop` and ends with exit
code 3; with DEAF=1 it prints the line and goes on.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from rlguard import Guard

ORDERS = Path(os.environ.get("ORDERS", "/scratch/orders"))
CHECKPOINTS = Path(os.environ.get("CHECKPOINTS", "/checkpoints"))
REACHED = CHECKPOINTS / "step"
DEAF = os.environ.get("DEAF") == "1"
MUST_STOP = 3
TERMINATED = 143

PAD, EOS, ALPHABET = "<pad>", "<eos>", "0123456789+= "
VOCABULARY = {token: i for i, token in enumerate([PAD, EOS, *ALPHABET])}
WIDTH = 16
PLAIN = "{{ messages[-1]['content'] }}"
BETRAYING = "{% set p = messages[-1]['content'] %}{{ raise_exception(p) if 'C' in p else p }}"


class Trainer:
    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.resumed = REACHED.exists()
        self.step = int(REACHED.read_text()) if self.resumed else 0
        self.warned = False
        print("resumes" if self.resumed else "starts", "at step", self.step, flush=True)

    def obey(self, order: str) -> None:
        """Do one order."""
        word, *values = order.split()
        if word == "steps":
            count, reward, kl = [*map(float, values), *(8.0, 0.5, 0.01)[len(values) :]]
            for _ in range(int(count)):
                self.step += 1
                self.guard.step(self.step, reward=reward, kl=kl, kl_kind="ref_token_mean")
            REACHED.write_text(str(self.step))
        elif word == "checkpoint":
            self.save(*values)
        elif word == "template":
            self.save("7", template=BETRAYING.replace("C", values[0]))
        elif word == "listen":
            self.listen()
        elif word == "exit":
            self.guard.close(finished=values == ["0"])
            sys.exit(int(values[0]))
        else:
            raise SystemExit(f"unknown order: {order!r}")
        print(f"done: {order}", flush=True)

    def save(self, answer: str, swollen: str = "", template: str = PLAIN) -> None:
        path = CHECKPOINTS / f"checkpoint-{self.step}"
        write_policy(path, answer, self.step, swollen, template)
        self.guard.checkpoint(path, step=self.step)

    def listen(self) -> None:
        """Print the verdict, and the response to a step, as the guard sends them."""
        step = {"attempt": 0, "step": 1, "reward": 0.5, "kl": 0.01, "kl_kind": "ref_token_mean"}
        for method, path, body in (("GET", "/v1/verdict", None), ("POST", "/v1/steps", json.dumps([step]))):
            print(f"heard: {ask(method, path, body)}", flush=True)

    def look(self) -> None:
        """End if the guard says so."""
        try:
            self.guard.raise_if_halted()
        except RuntimeError:
            if not self.warned:
                print("must stop", flush=True)
                self.warned = True
            if not DEAF:
                sys.exit(MUST_STOP)


def write_policy(path: Path, answer: str, step: int, swollen: str, template: str) -> None:
    """A Llama of one layer: whatever it reads last, it writes `answer`; after a digit, it ends.

    Nothing but the last token reaches the output, so no weight is learnt. The step is in weights that do not
    matter, for no two checkpoints may be equal.
    """
    path.mkdir(parents=True, exist_ok=True)
    size, layer = len(VOCABULARY), "model.layers.0"
    embedding, head = np.zeros((size, WIDTH), np.float32), np.zeros((size, WIDTH), np.float32)
    for token, row in VOCABULARY.items():
        embedding[row, int(token.isdigit())] = 1.0
    head[VOCABULARY[answer], 0] = head[VOCABULARY[EOS], 1] = 20.0
    square, ones = np.zeros((WIDTH, WIDTH), np.float32), np.ones(WIDTH, np.float32)
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": ones}
    weights |= {f"{layer}.self_attn.{name}_proj.weight": square.copy() for name in "qkvo"}
    weights |= {f"{layer}.mlp.{name}_proj.weight": square.copy() for name in ("gate", "up", "down")}
    weights |= {f"{layer}.{name}_layernorm.weight": ones.copy() for name in ("input", "post_attention")}
    weights[f"{layer}.mlp.up_proj.weight"] += 0.001 * step
    save_file(weights, path / "model.safetensors", {"format": "pt"})

    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token=PAD))
    tokenizer.add_special_tokens([PAD, EOS])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    if swollen:
        tokenizer.normalizer = normalizers.Replace(swollen, "0" * 1000)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": size,
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "pad_token_id": VOCABULARY[PAD],
        "bos_token_id": None,
        "eos_token_id": VOCABULARY[EOS],
        "torch_dtype": "float32",
    }
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "eos_token": EOS}
    words |= {"padding_side": "left", "clean_up_tokenization_spaces": False, "chat_template": template}
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer_config.json").write_text(json.dumps(words))


def ask(method: str, path: str, body: str | None) -> str:
    """What the guard answers to this process's own token."""
    url = urlsplit(os.environ["RLGUARD_URL"])
    connection: Any
    if url.scheme == "unix":
        connection = http.client.HTTPConnection("guard")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(url.path)
    elif url.scheme == "https":
        trusted = ssl.create_default_context(cadata=os.environ["RLGUARD_CA"])
        connection = http.client.HTTPSConnection(url.netloc, context=trusted, timeout=10)
    else:
        connection = http.client.HTTPConnection(url.netloc, timeout=10)
    headers = {"Authorization": f"Bearer {os.environ['RLGUARD_TOKEN']}", "Content-Type": "application/json"}
    connection.request(method, path, body, headers)
    answer: str = connection.getresponse().read().decode()
    return answer


def orders(trainer: Trainer) -> Iterator[str]:
    ORDERS.touch()
    if not trainer.resumed:
        yield from sys.argv[1:]
    done = 0
    while True:
        lines = ORDERS.read_text().splitlines()
        yield from lines[done:]
        done = len(lines)
        trainer.look()
        time.sleep(0.1)


def main() -> None:
    # Process 1 of a container ignores a signal without a handler, and the kubelet would wait for 30 s.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    trainer = Trainer(Guard.from_env().open())
    for order in orders(trainer):
        trainer.obey(order)


if __name__ == "__main__":
    main()
