"""What TensorFlow reads in a checkpoint, as JSON: {reader: {name: [dtype, dims, CRC-32C of the bytes]}}.

usage: read_by_tensorflow.py PREFIX. The readers are tf.train.load_checkpoint, tf.compat.v1.train.Saver, which restores
variables of these names in a graph, and tf.train.Checkpoint, which restores variables that are called so.
"""

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "data", "weights"))
from write import said

prefix = sys.argv[1]
reader = tf.train.load_checkpoint(prefix)
shapes = reader.get_variable_to_shape_map()
dtypes = reader.get_variable_to_dtype_map()
found = {"load_checkpoint": {name: said(reader.get_tensor(name)) for name in shapes}}

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    make = lambda name: tf.compat.v1.get_variable(name, shapes[name], dtypes[name], use_resource=True,
                                                  initializer=tf.compat.v1.zeros_initializer())
    variables = {name: make(name) for name in shapes}
    tf.compat.v1.train.Saver(variables).restore(session, prefix)
    found["Saver"] = {name: said(session.run(variable)) for name, variable in variables.items()}

variables = {name: tf.Variable(tf.zeros(shapes[name], dtypes[name]), name=name) for name in shapes}
holder = tf.train.Checkpoint(**{f"v{n}": variable for n, variable in enumerate(variables.values())})
holder.restore(prefix)
found["Checkpoint"] = {name: said(variable.numpy()) for name, variable in variables.items()}
json.dump(found, sys.stdout)
