//! Imports ONNX training graphs into the graph IR.
