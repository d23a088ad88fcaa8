#!/usr/bin/python
"""Ansible module: the peers and the configuration of a longhaul relay."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

DOCUMENTATION = r"""
module: longhaul_relay
short_description: Peers and configuration of a longhaul relay, in force
description:
  - Checks the configuration, makes the list of peers as declared, replaces the file, and has a
    running relay reload it. A mistake stops before anything is replaced.
  - A relay that refuses the new configuration keeps the one in force, and gets its file back.
    The peers stay as declared.
author: longhaul maintainers
options:
  program: {description: Path or name of longhaul., type: path, default: longhaul}
  peers: {description: The declared list for C(longhaul pair apply)., type: str, required: true}
  keys_dir: {description: Directory with the keys., type: path, default: /var/lib/longhaul/pair}
  config: {description: Text of the configuration., type: str, required: true}
  config_file: {description: Its file., type: path, default: /etc/longhaul/longhaul.yaml}
  control_socket: {description: Socket of the running relay., type: path, default: /run/longhaul/control.sock}
  reload: {description: Have a running relay reload., type: bool, default: true}
"""

EXAMPLES = r"""
- name: Make the list of peers and the configuration
  longhaul_relay:
    peers: "{{ lookup('ansible.builtin.file', 'peers.yaml') }}"
    config: "{{ lookup('ansible.builtin.template', 'longhaul.yaml.j2') }}"
"""

RETURN = r"""
peers: {description: What longhaul pair apply --json prints., type: dict, returned: always}
reload: {description: What longhaul reload --json prints., type: dict, returned: if a relay runs}
"""

import json
import os
import socket
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.text.converters import to_bytes, to_text


class Relay(object):
    """A relay's files on this host, and the commands that change them."""

    def __init__(self, module):
        self.module = module
        self.file = module.params["config_file"]
        self.wanted = to_bytes(module.params["config"])
        self.former = None  # no file
        if os.path.exists(self.file):
            with open(self.file, "rb") as f:
                self.former = f.read()

    def run(self, *args, **kwargs):
        """Run longhaul; return its exit status and what it prints as JSON."""
        status, out, err = self.module.run_command([self.module.params["program"]] + list(args), **kwargs)
        try:
            return status, json.loads(out), err
        except ValueError:
            return status, None, err

    def fail(self, text, **kwargs):
        """End with the words of longhaul."""
        lines = [line.split("longhaul: ", 1)[-1] for line in to_text(text).strip().splitlines()]
        self.module.fail_json(msg="\n".join(lines), **kwargs)

    def write(self, content):
        """Replace the file; None removes it."""
        if content is None:
            os.remove(self.file)
            return
        fd, name = tempfile.mkstemp(dir=os.path.dirname(self.file), prefix=".longhaul-")
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(content)
            os.chmod(name, 0o644)
            self.module.atomic_move(name, self.file)
        finally:
            self.module.cleanup(name)

    def check(self):
        """Check the wanted configuration, beside the file if its directory is there."""
        where = os.path.dirname(self.file)
        fd, name = tempfile.mkstemp(dir=where if os.path.isdir(where) else self.module.tmpdir, prefix=".longhaul-")
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(self.wanted)
            status, checked, err = self.run("config", "check", "--json", name)
        finally:
            self.module.cleanup(name)
        mistakes = ["%s: %s; %s" % (m["at"].replace(name, self.file), m["problem"], m["fix"]) for m in (checked or {}).get("mistakes", [])]
        if status != 0:
            self.fail("\n".join(mistakes) or err)

    def apply_peers(self):
        """Make the list of peers as declared; return the difference."""
        keys = self.module.params["keys_dir"]
        if self.module.check_mode and not os.path.exists(os.path.join(keys, "key")):
            return {"changes": [{"change": "added", "peer": "all of the list"}], "outdated": []}
        args = ["--check"] if self.module.check_mode else []
        status, applied, err = self.run("pair", "apply", "--json", "--dir", keys, "-", *args, data=self.module.params["peers"])
        if applied is None:
            self.fail(err)
        for name in applied["outdated"]:
            self.module.warn("the list has a former key of %s, which has another one by now" % name)
        return applied

    def runs(self):
        """Report whether a relay answers at the control socket."""
        s = socket.socket(socket.AF_UNIX)
        try:
            s.settimeout(10)
            s.connect(self.module.params["control_socket"])
            return True
        except (OSError, IOError):
            return False
        finally:
            s.close()

    def reload(self):
        """Have the relay take the file, or put the former one back."""
        status, outcome, err = self.run("reload", "--json", "--control-socket", self.module.params["control_socket"])
        if status != 0:
            if self.former != self.wanted:
                self.write(self.former)
            self.fail((outcome or {}).get("error") or err, reload=outcome)
        for w in outcome.get("warnings", []):
            self.module.warn("%s:%s:%s: %s; %s" % (w.get("file", ""), w.get("line", ""), w.get("column", ""), w["problem"], w["fix"]))
        for setting in outcome.get("needs_restart", []):
            self.module.warn("%s waits for a restart of the relay" % setting)
        return outcome


def lines(changes):
    """The changes of peers as lines of a diff."""
    return "".join("%s %s\n" % (c["change"], c["peer"]) for c in changes)


def main():
    module = AnsibleModule(
        argument_spec=dict(
            program=dict(type="path", default="longhaul"),
            peers=dict(type="str", required=True),
            keys_dir=dict(type="path", default="/var/lib/longhaul/pair", no_log=False),
            config=dict(type="str", required=True),
            config_file=dict(type="path", default="/etc/longhaul/longhaul.yaml"),
            control_socket=dict(type="path", default="/run/longhaul/control.sock"),
            reload=dict(type="bool", default=True),
        ),
        supports_check_mode=True,
    )
    relay = Relay(module)
    differs = relay.former != relay.wanted
    if differs:
        relay.check()
    peers = relay.apply_peers()
    result = {"changed": differs or bool(peers["changes"]), "peers": peers}
    result["diff"] = [
        {"before_header": relay.file, "after_header": relay.file, "before": to_text(relay.former or b""), "after": to_text(relay.wanted)},
        {"before_header": "peers", "after_header": "peers", "before": "", "after": lines(peers["changes"])},
    ]
    if not module.check_mode:
        if differs:
            if not os.path.isdir(os.path.dirname(relay.file)):
                os.makedirs(os.path.dirname(relay.file), 0o755)
            relay.write(relay.wanted)
        # Also without a difference: an earlier run may have been cut off before its reload.
        if module.params["reload"] and relay.runs():
            outcome = result["reload"] = relay.reload()
            result["changed"] = result["changed"] or any(outcome.get(k) for k in ("added", "changed", "removed", "settings", "restored"))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
