#!/usr/bin/env python3
"""Writes keras.json: what Keras' EarlyStopping and ReduceLROnPlateau decide over sequences of values.

The callbacks are Keras' own (2.15, TensorFlow 2.15.1); only the model is a stand-in with an optimizer's rate and weights.
Run as: python3 make_keras > keras.json
"""
import json, random
import numpy as np
import tensorflow as tf
from keras.callbacks import EarlyStopping, ReduceLROnPlateau

random.seed(53)


class Model:
    def __init__(self, rate):
        self.optimizer = tf.keras.optimizers.SGD(rate)
        self.stop_training, self.epoch, self.restored = False, -1, None

    def get_weights(self):
        return self.epoch

    def set_weights(self, weights):
        self.restored = weights


def run(callback, monitor, values, rate=0.1):
    model = Model(rate)
    callback.set_model(model)
    callback.on_train_begin()
    rates = []
    for epoch, value in enumerate(values):
        model.epoch = epoch
        callback.on_epoch_end(epoch, {monitor: value})
        rates.append(float(np.float32(model.optimizer.lr.numpy())))
        if model.stop_training:
            break
    return model, rates


def values(n):
    kind = random.randrange(4)
    out, at = [], 1.0
    for _ in range(n):
        at *= random.choice([0.8, 0.99, 1.0, 1.0, 1.05])
        out.append({0: at, 1: round(at, 2), 2: float(np.float32(at)), 3: random.random()}[kind])
    if kind == 3:
        out[random.randrange(n)] = float("nan")
    return out


cases = []
for number in range(120):
    monitor, mode = random.choice([("test_loss", "auto"), ("test_accuracy", "auto"), ("test_loss", "max"), ("test_loss", "min")])
    seq = values(random.randrange(3, 25))
    patience = random.randrange(0, 4)
    min_delta = random.choice([0, 0, 1e-4, 0.01, 0.1])
    case = {"monitor": monitor, "mode": mode, "values": [None if v != v else v for v in seq], "patience": patience, "min_delta": min_delta}
    if number % 2:
        baseline, start = random.choice([None, None, 0.7]), random.choice([0, 0, 2])
        callback = EarlyStopping(monitor, min_delta, patience, mode=mode, baseline=baseline, restore_best_weights=True, start_from_epoch=start)
        model, rates = run(callback, monitor, seq)
        case |= {"baseline": baseline, "start_from_epoch": start, "n_epochs": len(rates), "stopped": model.stop_training, "restored": model.restored}
    else:
        factor, cooldown, min_rate, rate = random.choice([0.1, 0.3, 0.5]), random.randrange(3), random.choice([0, 1e-3, 0.02]), random.choice([0.1, 1e-3, 0.7])
        callback = ReduceLROnPlateau(monitor, factor, patience, mode=mode, min_delta=min_delta, cooldown=cooldown, min_lr=min_rate)
        _, rates = run(callback, monitor, seq, rate)
        case |= {"factor": factor, "cooldown": cooldown, "min_rate": min_rate, "rate": rate, "rates": rates}
    cases.append(case)
print("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]")
