"""Protobuf messages and typed call tables of the kubelet APIs."""
