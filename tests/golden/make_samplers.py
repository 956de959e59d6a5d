"""Schedules and steps of diffusers' flow-match Euler and UniPC schedulers."""
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from golden_io import Random, describe, save

SEED = 31
SHAPE = (1, 4, 1, 2, 3)

ABOUT = (
    "timesteps and sigmas as the scheduler sets them, F32; sigmas end with 0; the timesteps of UniPC are "
    "integers. samples[i] is the state before step i, samples[-1] the result, start the first state. Step i "
    "was given model_outputs[i] = 0.8 x + 0.5 noise_i - 0.3, where x is the state."
)


def make_scheduler(kind, shift):
    if kind == "euler":
        return FlowMatchEulerDiscreteScheduler(shift=float(shift))
    return UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True,
                                   flow_shift=float(shift))


def walk(random, scheduler, steps):
    scheduler.set_timesteps(steps)
    samples, outputs = [random.normal(*SHAPE)], []
    for timestep in scheduler.timesteps:
        outputs.append(0.8 * samples[-1] + random.normal(*SHAPE, scale=0.5, mean=-0.3))
        samples.append(scheduler.step(outputs[-1], timestep, samples[-1], return_dict=False)[0])
    return {"timesteps": scheduler.timesteps, "sigmas": scheduler.sigmas, "start": samples[0],
            "samples": torch.stack(samples), "model_outputs": torch.stack(outputs)}


def write(folder):
    random, cases = Random(SEED), {}
    for kind in ("euler", "unipc"):
        for shift in (3, 5):
            for steps in (10, 50):
                name = f"{kind}_shift{shift}_steps{steps}"
                save(folder / kind / f"{name}.safetensors", walk(random, make_scheduler(kind, shift), steps))
                cases[name] = {"shift": shift, "steps": steps}
    describe(folder, SEED, ABOUT, cases=cases)
