"""The same weights under ``transformers`` ``generate``, float32: a process that runs on request.

Reads a JSON line ``{"prompts": [...], "max_tokens": N}`` at a time and answers the seconds it took.
Batches are static (left-padded), as ``generate`` has them.
"""

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def load(path: Path) -> LlamaForCausalLM:
    """What ``from_pretrained`` does with a GGUF file, which would ask for accelerate."""
    parsed = load_gguf_checkpoint(path, return_tensors=False)
    model = LlamaForCausalLM(LlamaConfig(**parsed["config"])).float()
    tensors = load_gguf_checkpoint(
        path, return_tensors=True, model_to_load=model, torch_dtype=torch.float32
    )["tensors"]
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    return model.eval()


def main(path: Path, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, padding_side="left")
    model = load(path)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        inputs = tokenizer(request["prompts"], return_tensors="pt", padding=True)
        max_tokens = request["max_tokens"]
        started_s = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                **inputs,
                max_new_tokens=max_tokens,
                min_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=tokenizer.eos_token_id,
            )
        print(json.dumps({"seconds": time.perf_counter() - started_s}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
