package cc

// TryOut has the kernel's verifier check one of longhaul's algorithms. It returns
// degraded features, a sentence each, and why it cannot be loaded. It registers and
// pins nothing.
func (h *Host) TryOut(name string) (notes []string, err error) { return h.whyNot(name, true) }
