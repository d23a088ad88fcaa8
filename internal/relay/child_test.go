package relay

// childRole names the environment variable that makes the test binary run as
// a child of a test: a process that can be killed, or limited.
const childRole = "LONGHAUL_RELAY_TEST_CHILD"

func child(string) int { return 2 }
