"""Training pads a prompt to the width that its rollout had, so that recorded log-probs are replayed to the bit."""

import pytest
import torch
from tiny_qwen_image import conditioning, qwen_scheduler, tiny_transformer, tiny_vae

from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.compute.models.qwen_image import QwenImageAdapter
from spotlight.compute.models.text_encoding import write_conditioning
from spotlight.compute.rollout.denoise import roll_out
from spotlight.compute.rollout.flight import Payload
from spotlight.compute.train.config import LOG_PROB_GAP, FlowGrpoConfig, LoraConfig, TrainConfig
from spotlight.compute.train.role import TrainingRole
from spotlight.compute.train.trainer import Trainer
from spotlight.core import messages as m
from spotlight.core.types import Prompt, Sample, SamplerKind, Sampling, Size, Version, Window
from spotlight.core.work import Request, Work

SHORT, LONG = Prompt(text="a boat"), Prompt(text="a red boat on a lake in the evening")
SAMPLING = Sampling(
    steps=4, size=Size(64, 64), sampler=SamplerKind.FLOW_SDE, noise_level=0.7, window=Window(1, 1), guidance=1.0
)
ROWS = 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_log_probs_of_prompts_of_different_lengths_in_one_order_are_those_of_their_rollouts(tmp_path, dtype):
    adapter = QwenImageAdapter(tiny_transformer().to(dtype), tiny_vae(), qwen_scheduler())
    embeddings = EmbeddingFolder(tmp_path, "encoder")
    for prompt, tokens in ((SHORT, 20), (LONG, 700)):
        write_conditioning(embeddings.file(prompt.text), conditioning(tokens, seed=tokens))
    adapter.read_embeddings(embeddings)
    widths = [adapter.collate(adapter.encode([prompt])).mask.shape[1] for prompt in (SHORT, LONG)]
    assert widths[0] < widths[1]
    train = TrainConfig(micro_batch=ROWS, lora=LoraConfig(rank=2))
    trainer = Trainer(adapter, train, FlowGrpoConfig(), run_seed=0)
    role = TrainingRole(trainer, adapter, "base", tmp_path, lambda message: None)
    items = [item for group, prompt in enumerate((SHORT, LONG)) for item in rolled(adapter, prompt, group, tmp_path)]
    stepped = role.obey(m.Train(step=0, iteration=0, items=tuple(items), last=True))
    assert stepped.figures[LOG_PROB_GAP] == 0
    assert stepped.figures["ratio_deviation"] == 0


def rolled(adapter, prompt, group, folder):
    """Items of one group, rolled out at the width of its prompt."""
    samples = [Sample(prompt=prompt.id, seed=seed, sampling=SAMPLING, version=Version(0)) for seed in range(ROWS)]
    cond = adapter.collate(adapter.encode([prompt]) * ROWS)
    made = roll_out(adapter, samples, cond, None, run_seed=0)
    for index, sample in enumerate(samples):
        request = Request(work=Work.ROLLOUT, iteration=0, group=group, sample=sample)
        payload = Payload(
            request=request,
            weights_digest="base",
            x0_SC=made.x0_BSC[index],
            path_KSC=made.path_BKSC[index],
            log_prob_K=made.log_prob_BK[index],
            mean_KSC=made.mean_BKSC[index],
        )
        path = folder / f"{group}-{index}"
        path.write_bytes(payload.to_bytes())
        advantage = (-1.0) ** index
        yield m.TrainItem(request=request, prompt=prompt, payload=path.name, advantage=advantage, kept=True)
