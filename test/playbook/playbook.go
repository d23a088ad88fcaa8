// Package playbook runs the playbooks of packaging/ansible on sites that are directories of this host.
package playbook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"longhaul/packaging"
)

// Vars are variables of a host or of all hosts.
type Vars map[string]any

// Sites is an inventory beside the playbooks, and a directory for each of its hosts: HOST/etc,
// HOST/keys, HOST/control.sock.
type Sites struct {
	Dir   string // has the playbooks, inventory.yaml and the hosts
	Hosts map[string]Vars
	All   Vars // of all hosts
}

// New writes the installed playbooks to an empty directory, for hosts that have the program.
func New(dir, program string) (*Sites, error) {
	shared, err := packaging.Shared()
	if err != nil {
		return nil, err
	}
	for name, content := range shared {
		name, is := strings.CutPrefix(name, "longhaul/ansible/")
		if !is || strings.HasPrefix(name, "example/") {
			continue
		}
		path := filepath.Join(dir, name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644))
		if err != nil {
			return nil, err
		}
	}
	of := filepath.Join(dir, "{{ inventory_hostname }}")
	return &Sites{dir, map[string]Vars{}, Vars{
		"ansible_connection":         "local",
		"ansible_python_interpreter": "/usr/bin/python3",
		"longhaul_program":           program,
		"longhaul_service":           false,
		"longhaul_config_dir":        filepath.Join(of, "etc"),
		"longhaul_keys_dir":          filepath.Join(of, "keys"),
		"longhaul_control_socket":    filepath.Join(of, "control.sock"),
		"longhaul_settings": Vars{
			"pair_keys": "{{ longhaul_keys_dir }}", "control_socket": "{{ longhaul_control_socket }}"},
	}}, nil
}

// Recap is what a run did on a host.
type Recap struct{ OK, Changed, Unreachable, Failed int }

// Outcome is how a run ended.
type Outcome struct {
	Output string
	Status int // of ansible-playbook: 2 a host failed, 4 a host was unreachable
	Hosts  map[string]Recap
	CPU    time.Duration
}

// Changed is the number of changes on all hosts.
func (o *Outcome) Changed() (n int) {
	for _, r := range o.Hosts {
		n += r.Changed
	}
	return n
}

var recap = regexp.MustCompile(`(?m)^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)`)

// Run writes the inventory and runs ansible-playbook in the directory. The error is that it could not
// run, or did not end by itself.
func (s *Sites) Run(ctx context.Context, args ...string) (*Outcome, error) {
	inventory, err := json.MarshalIndent(Vars{"longhaul": Vars{"vars": s.All, "hosts": s.Hosts}}, "", " ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.Dir, "inventory.yaml"), inventory, 0o644); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "ansible-playbook", args...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "ANSIBLE_NOCOLOR=1", "ANSIBLE_NOCOWS=1", "ANSIBLE_RETRY_FILES_ENABLED=0",
		"ANSIBLE_HOME="+filepath.Join(s.Dir, ".ansible"), "ANSIBLE_LOCAL_TEMP="+filepath.Join(s.Dir, ".ansible", "tmp"),
		"ANSIBLE_REMOTE_TEMP="+filepath.Join(s.Dir, ".ansible", "tmp"), "ANSIBLE_CONFIG="+filepath.Join(s.Dir, "ansible.cfg"), "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || !exit.Exited()) {
		return nil, fmt.Errorf("ansible-playbook %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	o := &Outcome{Output: string(out), Status: cmd.ProcessState.ExitCode(), Hosts: map[string]Recap{},
		CPU: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	for _, m := range recap.FindAllStringSubmatch(o.Output, -1) {
		var n [4]int
		for i := range n {
			n[i], _ = strconv.Atoi(m[2+i])
		}
		o.Hosts[m[1]] = Recap{n[0], n[1], n[2], n[3]}
	}
	return o, nil
}

// Path is a file of a host.
func (s *Sites) Path(host, name string) string { return filepath.Join(s.Dir, host, name) }

// Files are the contents of all files of the hosts and the list of keys, by path, without sockets.
func (s *Sites) Files() (map[string]string, error) {
	all := map[string]string{}
	for _, dir := range append(hostNames(s.Hosts), "peers.yaml") {
		err := filepath.WalkDir(filepath.Join(s.Dir, dir), func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			all[path] = string(text)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func hostNames(hosts map[string]Vars) (names []string) {
	for name := range hosts {
		names = append(names, name)
	}
	return names
}
