// Command image makes the container images of longhaul from finished programs, without
// a daemon and without a registry:
//
//   - longhaul-VERSION-oci.tar, an OCI layout with an index of all architectures;
//   - longhaul-VERSION-linux-ARCH-docker.tar, what `docker save` would write, with the
//     types of Docker, which include the health check.
//
// The same input gives the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "packaging/image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var (
		r     release
		epoch int64
		out   string
	)
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&r.version, "version", "", "`VERSION` of the release")
	flags.StringVar(&r.commit, "commit", "", "`COMMIT` of the release")
	flags.StringVar(&r.homepage, "homepage", "", "`URL` of the project (none)")
	flags.StringVar(&r.licences, "licences", "", "`DIR` of the licence files")
	flags.Int64Var(&epoch, "epoch", 0, "`SECONDS` since 1970: the time of everything in the images")
	flags.StringVar(&out, "out", ".", "`DIR` of the results")
	if err := flags.Parse(args); err != nil {
		return err
	}
	r.time = time.Unix(epoch, 0).UTC()
	if r.version == "" || r.commit == "" || r.licences == "" || flags.NArg() == 0 {
		return errors.New("need --version, --commit, --licences, and ARCH=PROGRAM for each architecture")
	}
	for _, arg := range flags.Args() {
		arch, program, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is not ARCH=PROGRAM", arg)
		}
		r.programs = append(r.programs, built{arch, program})
	}
	if err := r.writeOCI(filepath.Join(out, "longhaul-"+r.version+"-oci.tar")); err != nil {
		return fmt.Errorf("write the OCI layout: %w", err)
	}
	for _, p := range r.programs {
		path := filepath.Join(out, "longhaul-"+r.version+"-linux-"+p.arch+"-docker.tar")
		if err := r.writeDocker(path, p); err != nil {
			return fmt.Errorf("write the archive for docker load: %w", err)
		}
	}
	return nil
}
