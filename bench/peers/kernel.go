package peers

import "golang.org/x/sys/unix"

// KernelVersion is the version of the running kernel. What a vendor appends to
// it says nothing of interest here.
func KernelVersion() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return versionNumber.FindString(unix.ByteSliceToString(u.Release[:]))
}
