// CPython for the frozen agent: the distribution that this module carries, built for glibc 2.17.
module vgpu-agent/runtime

go 1.26

require github.com/kluctl/go-embed-python v0.0.0-3.14.6-20260610-1
