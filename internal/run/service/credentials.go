package service

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"longhaul/internal/run/config"
	"longhaul/internal/sys/httpd/webconfig"
	"longhaul/internal/words/remedy"
)

// credentialDir is the directory of LoadCredential='s files while the service runs.
const credentialDir = "/run/credentials/" + UnitName + "/"

// credentialSource returns the file in /etc/longhaul that systemd passes to the
// service as a path in credentialDir; ok is false for any other path.
func credentialSource(path string) (source string, ok bool) {
	name, ok := strings.CutPrefix(path, credentialDir)
	if !ok || name == "" || strings.ContainsAny(name, "/:%") {
		return "", false
	}
	return filepath.Join(filepath.Dir(ConfigFile), name), true
}

// ReadablePath returns the path at which a configured secret is readable now: for a
// credential of a stopped service its source file, else the path itself.
func ReadablePath(path string) string {
	if source, ok := credentialSource(path); ok {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return source
		}
	}
	return path
}

// checkKey makes a check of key files for a [config.Loader]. The service's user cannot
// read root's files or own a file, so systemd must pass it the key. On this machine
// read, unless nil, checks the file itself.
func (h Host) checkKey(read func(path string) (problem, fix string)) func(path string) (problem, fix string) {
	return func(path string) (problem, fix string) {
		source, ok := credentialSource(path)
		switch {
		case !ok:
			return "the service's user cannot read the key file " + path, credentialFix(path)
		case h.Root != "" && !h.Exists(source):
			return "there is no " + source + " in the image", "make it with longhaul check --new-key, or copy it from another relay"
		case h.Root == "" && read != nil:
			return read(source)
		}
		return "", ""
	}
}

// checkDashboard checks the secrets of the dashboard. The certificate is public.
func (h Host) checkDashboard(read func(config.Dashboard) (problem, fix string)) func(config.Dashboard) (problem, fix string) {
	return func(c config.Dashboard) (problem, fix string) {
		for _, file := range []string{c.TLSKey, c.TokenFile, c.PasswordFile} {
			if _, ok := credentialSource(file); !ok && file != "" {
				return "the service's user cannot read the file " + file + " of the dashboard", credentialFix(file)
			}
		}
		if h.Root != "" || read == nil {
			return "", ""
		}
		return read(c)
	}
}

// readWebConfig reads a web configuration as the service will have it: it and the files in it that
// only root can read are credentials.
func (h Host) readWebConfig(path string) (*webconfig.Settings, config.Errors, error) {
	if _, ok := credentialSource(path); !ok {
		return nil, nil, remedy.New(fmt.Errorf("the service's user cannot read the web configuration %s", path), credentialFix(path))
	}
	readable := func(path string) string {
		if source, ok := credentialSource(path); ok {
			path = source
		}
		return filepath.Join("/", h.Root, path)
	}
	s, warnings, err := config.ReadWebConfig(path, readable)
	if err != nil {
		return nil, warnings, err
	}
	for _, file := range s.Named {
		info, err := os.Stat(readable(file))
		if _, ok := credentialSource(file); !ok && err == nil && info.Mode()&0o004 == 0 {
			return nil, warnings, remedy.New(fmt.Errorf("the service's user cannot read the file %s of the web configuration", file),
				"name it without a folder, and put it into /etc/longhaul: longhaul service install has systemd pass it to the service")
		}
	}
	return s, warnings, nil
}

// credentialFix returns how the service gets a file that only root can read.
func credentialFix(path string) string {
	name := filepath.Base(path)
	return "put it at /etc/longhaul/" + name + " and name it " + credentialDir + name + " here: longhaul service install has systemd pass it to the service"
}

// credentials returns the names of the files that systemd must pass for a
// configuration.
func credentials(c *config.Config) (names []string) {
	names = slices.Concat(dashboardCredentials(c), webCredentials(c), shipCredentials(c))
	for _, t := range c.Tunnels {
		if source, ok := credentialSource(t.Check.KeyFile); ok {
			names = append(names, filepath.Base(source))
		}
	}
	return names
}

// dashboardCredentials returns the credentials of the dashboard.
func dashboardCredentials(c *config.Config) (names []string) {
	for _, file := range []string{c.Dashboard.TLSCert, c.Dashboard.TLSKey, c.Dashboard.TokenFile, c.Dashboard.PasswordFile} {
		if source, ok := credentialSource(file); ok {
			names = append(names, filepath.Base(source))
		}
	}
	return names
}

// webCredentials returns the credentials of web configurations.
func webCredentials(c *config.Config) (names []string) {
	for _, w := range []config.WebConfig{c.HTTPWebConfig, c.Dashboard.WebConfig} {
		for _, file := range append([]string{w.File}, w.Files...) {
			if source, ok := credentialSource(file); ok {
				names = append(names, filepath.Base(source))
			}
		}
	}
	return names
}

// shipCredentials returns the credentials of the sinks of records.
func shipCredentials(c *config.Config) (names []string) {
	for _, t := range c.History.Ship {
		for _, file := range []string{t.PasswordFile, t.CA, t.Certificate, t.Key} {
			if source, ok := credentialSource(file); ok {
				names = append(names, filepath.Base(source))
			}
		}
	}
	return names
}
