package config

import "reflect"

// Changes lists the names of tunnels by how two configurations differ.
type Changes struct {
	Added, Changed, Removed, Unchanged []string
}

// Diff compares the tunnels of two configurations by name.
func Diff(before, after *Config) Changes {
	var c Changes
	old := map[string]Tunnel{}
	for _, t := range before.Tunnels {
		old[t.Name] = t
	}
	for _, t := range after.Tunnels {
		was, known := old[t.Name]
		delete(old, t.Name)
		switch {
		case !known:
			c.Added = append(c.Added, t.Name)
		case reflect.DeepEqual(was, t):
			c.Unchanged = append(c.Unchanged, t.Name)
		default:
			c.Changed = append(c.Changed, t.Name)
		}
	}
	for _, t := range before.Tunnels {
		if _, gone := old[t.Name]; gone {
			c.Removed = append(c.Removed, t.Name)
		}
	}
	return c
}

// ChangedSettings lists the changed settings beside the tunnels.
func ChangedSettings(before, after *Config) []string {
	keys := NeedsRestart(before, after)
	for _, s := range []struct {
		key           string
		before, after any
	}{
		{"drain_timeout", before.DrainTimeout, after.DrainTimeout},
		{"memory_limit", before.MemoryLimit, after.MemoryLimit},
		{"limits", before.Limits, after.Limits},
		{"http_listen", before.HTTPListen, after.HTTPListen},
		{"http_names", before.HTTPNames, after.HTTPNames},
		{"http_web_config", before.HTTPWebConfig, after.HTTPWebConfig},
		{"health_listen", before.HealthListen, after.HealthListen},
		{"metrics", before.Metrics, after.Metrics},
		{"dashboard", before.Dashboard, after.Dashboard},
		{"history", before.History, after.History},
		{"pair_trust", before.PairTrust, after.PairTrust},
		{"interception", before.Interception, after.Interception},
		{"log.level", before.Log.Level, after.Log.Level},
	} {
		if !reflect.DeepEqual(s.before, s.after) {
			keys = append(keys, s.key)
		}
	}
	return keys
}

// NeedsRestart lists the changed settings that require a new process.
func NeedsRestart(before, after *Config) []string {
	var keys []string
	for _, s := range []struct {
		key     string
		differs bool
	}{
		{"name", before.Name != after.Name},
		{"control_socket", before.ControlSocket != after.ControlSocket},
		{"half_close_timeout", before.HalfCloseTimeout != after.HalfCloseTimeout},
		{"reset_drain_timeout", before.ResetDrainTimeout != after.ResetDrainTimeout},
		{"stall_timeout", before.StallTimeout != after.StallTimeout},
		{"pair_keys", before.PairKeys != after.PairKeys},
		{"workers", before.Workers != after.Workers},
		{"log.format", before.Log.Format != after.Log.Format},
	} {
		if s.differs {
			keys = append(keys, s.key)
		}
	}
	return keys
}
