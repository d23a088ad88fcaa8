package cc

// TryOut has the kernel's verifier check one of longhaul's algorithms, and returns why
// it cannot be loaded. It registers and pins nothing.
func (h *Host) TryOut(name string) error { return h.whyNot(name, true) }
