// Package manifests checks packaging/kubernetes against Kubernetes' own types, and builds
// them as kubectl apply -k does. It is a module of its own, so that longhaul does not depend
// on them.
package manifests

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const dir = "../../kubernetes/"

// newObject returns an empty object of a kind.
func newObject(kind metav1.TypeMeta) any {
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 Namespace":
		return &corev1.Namespace{}
	case "v1 ConfigMap":
		return &corev1.ConfigMap{}
	case "v1 Service":
		return &corev1.Service{}
	case "apps/v1 Deployment":
		return &appsv1.Deployment{}
	case "apps/v1 StatefulSet":
		return &appsv1.StatefulSet{}
	case "apps/v1 DaemonSet":
		return &appsv1.DaemonSet{}
	case "policy/v1 PodDisruptionBudget":
		return &policyv1.PodDisruptionBudget{}
	case "networking.k8s.io/v1 NetworkPolicy":
		return &networkingv1.NetworkPolicy{}
	case "monitoring.coreos.com/v1 PodMonitor":
		return &monitoringv1.PodMonitor{}
	case "monitoring.coreos.com/v1 PrometheusRule":
		return &monitoringv1.PrometheusRule{}
	}
	return nil
}

// objects are the decoded objects of a file or folder, by kind; the ConfigMaps by name, and each
// pod as the controller makes it.
type objects struct {
	kinds   map[string]any
	configs map[string]*corev1.ConfigMap
	pod     corev1.PodTemplateSpec
}

// decode decodes objects. A key that Kubernetes does not know, or a value of another type, is an
// error, and so is a second object of a kind.
func decode(t *testing.T, text []byte) objects {
	t.Helper()
	all := objects{kinds: map[string]any{}, configs: map[string]*corev1.ConfigMap{}}
	for part := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(part, &kind); err != nil {
			t.Fatalf("%v in\n%s", err, part)
		}
		object := newObject(kind)
		if object == nil {
			t.Fatalf("unknown %s of %s", kind.Kind, kind.APIVersion)
		}
		if err := yaml.UnmarshalStrict(part, object); err != nil {
			t.Fatalf("%s: %v", kind.Kind, err)
		}
		switch object := object.(type) {
		case *corev1.ConfigMap:
			all.configs[object.Name] = object
			continue
		case *appsv1.Deployment:
			all.pod = object.Spec.Template
		case *appsv1.DaemonSet:
			all.pod = object.Spec.Template
		case *appsv1.StatefulSet:
			all.pod = object.Spec.Template
			for _, claim := range object.Spec.VolumeClaimTemplates {
				all.pod.Spec.Volumes = append(all.pod.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}})
			}
		}
		if all.kinds[kind.Kind] != nil {
			t.Fatalf("two of the kind %s", kind.Kind)
		}
		all.kinds[kind.Kind] = object
	}
	return all
}

func (o objects) namespace() *corev1.Namespace { return o.kinds["Namespace"].(*corev1.Namespace) }

// config is the object that a pod's volume has a file from, nil if it is missing.
func (o objects) config(file string) *corev1.ConfigMap {
	for _, c := range o.configs {
		if c.Data[file] != "" {
			return c
		}
	}
	return nil
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// build builds a folder as kubectl does, with the edits to its files: by name, what stands there and
// what replaces it.
func build(t *testing.T, folder string, edits map[string][2]string) objects {
	t.Helper()
	copied := filepath.Join(t.TempDir(), folder)
	if err := os.CopyFS(copied, os.DirFS(dir+folder)); err != nil {
		t.Fatal(err)
	}
	for name, edit := range edits {
		path := filepath.Join(copied, name)
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), edit[0]) {
			t.Fatalf("%s has no %q: %v", name, edit[0], err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), edit[0], edit[1])), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), copied)
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, text)
}

func TestRelay(t *testing.T) {
	all := build(t, "relay", nil)
	deployment := all.kinds["Deployment"].(*appsv1.Deployment)
	checkPod(t, all)
	selects(t, "Deployment", *deployment.Spec.Selector, all.pod)
	checkService(t, all)
	checkNetworkPolicy(t, all)
}

func TestPaired(t *testing.T) {
	all := build(t, "paired", nil)
	set := all.kinds["StatefulSet"].(*appsv1.StatefulSet)
	checkPod(t, all)
	selects(t, "StatefulSet", *set.Spec.Selector, all.pod)
	checkService(t, all)
	checkNetworkPolicy(t, all)
	if service := all.kinds["Service"].(*corev1.Service).Name; set.Spec.ServiceName != service {
		t.Errorf("the StatefulSet is of the Service %s, which is %s", set.Spec.ServiceName, service)
	}
	// Otherwise the kubelet lets the group write to the keys at each start, and longhaul refuses them.
	if s := all.pod.Spec.SecurityContext; s.FSGroupChangePolicy == nil || *s.FSGroupChangePolicy != corev1.FSGroupChangeOnRootMismatch {
		t.Errorf("files of the volume change their modes: %v", s.FSGroupChangePolicy)
	}
	for _, c := range slices.Concat(all.pod.Spec.InitContainers, all.pod.Spec.Containers) {
		mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/var/lib/longhaul" && m.Name == "state" })
		if !mounted || !reflect.DeepEqual(c.Env, []corev1.EnvVar{{Name: "STATE_DIRECTORY", Value: "/var/lib/longhaul"}}) {
			t.Errorf("%s has no volume with the keys, or another directory: %v", c.Name, c.Env)
		}
	}
}

// TestChanges holds that a changed configuration rolls the pods, and that a changed list of peers, or a
// ConfigMap that keeps its name, does not.
func TestChanges(t *testing.T) {
	for folder, object := range map[string]string{"relay": "longhaul-relay", "paired": "longhaul-near"} {
		before := build(t, folder, nil)
		after := build(t, folder, map[string][2]string{"longhaul.yaml": {"rate: 1Gbit", "rate: 2Gbit"}})
		if reflect.DeepEqual(before.pod, after.pod) {
			t.Errorf("%s: a changed longhaul.yaml does not roll the pods", folder)
		}
		checkPod(t, after)
		if name := after.config("longhaul.yaml").Name; name == before.config("longhaul.yaml").Name || !strings.HasPrefix(name, object+"-") {
			t.Errorf("%s: a changed longhaul.yaml is in %s", folder, name)
		}
	}
	peers := build(t, "paired", map[string][2]string{"peers.yaml": {"site-b/b2:", "site-b/b3:"}})
	if before := build(t, "paired", nil); !reflect.DeepEqual(before.pod, peers.pod) {
		t.Error("a changed peers.yaml rolls the pods")
	}
	keep := [2]string{"# generatorOptions:\n#   disable", "generatorOptions:\n  disable"}
	reloads := build(t, "relay", map[string][2]string{"kustomization.yaml": keep, "longhaul.yaml": {"rate: 1Gbit", "rate: 2Gbit"}})
	if before := build(t, "relay", map[string][2]string{"kustomization.yaml": keep}); !reflect.DeepEqual(before.pod, reloads.pod) {
		t.Error("a ConfigMap that keeps its name rolls the pods")
	}
	checkPod(t, reloads)
}

func TestNode(t *testing.T) {
	all := decode(t, read(t, "node.yaml"))
	set := all.kinds["DaemonSet"].(*appsv1.DaemonSet)
	checkPod(t, all)
	selects(t, "DaemonSet", *set.Spec.Selector, set.Spec.Template)

	// The patch changes the command of each first container, and nothing else.
	before, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, "node-undo.yaml")
	var patch appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &patch); err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	after, err := strategicpatch.StrategicMergePatch(before, asJSON, appsv1.DaemonSet{})
	if err != nil {
		t.Fatal(err)
	}
	var undo appsv1.DaemonSet
	if err := json.Unmarshal(after, &undo); err != nil {
		t.Fatal(err)
	}
	first := undo.Spec.Template.Spec.InitContainers
	if len(first) != len(set.Spec.Template.Spec.InitContainers) {
		t.Fatalf("the undo has %d first containers", len(first))
	}
	for i, c := range set.Spec.Template.Spec.InitContainers {
		if reflect.DeepEqual(first[i].Args, c.Args) {
			t.Errorf("the undo leaves the command of %s", c.Name)
		}
		first[i].Args = c.Args
	}
	if !reflect.DeepEqual(&undo, set) {
		t.Error("the undo changes more than commands")
	}
}

// TestMonitoring makes the objects of Prometheus Operator as monitoring.yaml says.
func TestMonitoring(t *testing.T) {
	const rules = "../prometheus/longhaul.rules.yml"
	text := read(t, "monitoring.yaml")
	if !bytes.Contains(text, []byte("sed 's/^/  /' "+rules)) {
		t.Fatal("monitoring.yaml has another command")
	}
	for line := range bytes.Lines(read(t, rules)) {
		text = append(append(text, "  "...), line...)
	}
	all := decode(t, text)
	monitor := all.kinds["PodMonitor"].(*monitoringv1.PodMonitor)
	for _, folder := range []string{"relay", "paired"} {
		of := build(t, folder, nil)
		selects(t, "PodMonitor", monitor.Spec.Selector, of.pod)
		if !slices.Contains(monitor.Spec.NamespaceSelector.MatchNames, of.namespace().Name) {
			t.Errorf("the PodMonitor leaves %s out", of.namespace().Name)
		}
		if job := of.pod.Labels[monitor.Spec.JobLabel]; job != "longhaul" {
			t.Errorf("%s: the job is %q, the rules have longhaul", folder, job)
		}
		for _, endpoint := range monitor.Spec.PodMetricsEndpoints {
			if !hasPort(of.pod, *endpoint.Port) {
				t.Errorf("%s: no port %s", folder, *endpoint.Port)
			}
		}
		allowed := of.kinds["NetworkPolicy"].(*networkingv1.NetworkPolicy).Spec.Ingress[1].From[0].NamespaceSelector
		if allowed.MatchLabels[corev1.LabelMetadataName] != monitor.Namespace {
			t.Errorf("%s: Prometheus is not let in from %s", folder, monitor.Namespace)
		}
	}
	var want monitoringv1.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(read(t, rules), &want); err != nil {
		t.Fatal(err)
	}
	if got := all.kinds["PrometheusRule"].(*monitoringv1.PrometheusRule); len(want.Groups) < 2 || !reflect.DeepEqual(got.Spec, want) {
		t.Errorf("the rules are others: %v", got.Spec)
	}
}

func selects(t *testing.T, what string, by metav1.LabelSelector, pod corev1.PodTemplateSpec) {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(&by)
	if err != nil || selector.Empty() || !selector.Matches(labels.Set(pod.Labels)) {
		t.Errorf("the %s selects %v, the pods have %v: %v", what, selector, pod.Labels, err)
	}
}

func hasPort(pod corev1.PodTemplateSpec, name string) bool {
	return slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
}

// checkService checks that Service and budget are of the pods.
func checkService(t *testing.T, all objects) {
	t.Helper()
	service := all.kinds["Service"].(*corev1.Service)
	selects(t, "Service", metav1.LabelSelector{MatchLabels: service.Spec.Selector}, all.pod)
	selects(t, "PodDisruptionBudget", *all.kinds["PodDisruptionBudget"].(*policyv1.PodDisruptionBudget).Spec.Selector, all.pod)
	for _, port := range service.Spec.Ports {
		if !hasPort(all.pod, port.TargetPort.StrVal) {
			t.Errorf("the Service leads to the port %q, which the container does not have", port.TargetPort.StrVal)
		}
	}
}

// checkNetworkPolicy checks that the pods may take connections at each port of theirs, ask name servers,
// and reach the next relays of their configuration.
func checkNetworkPolicy(t *testing.T, all objects) {
	t.Helper()
	rules := all.kinds["NetworkPolicy"].(*networkingv1.NetworkPolicy).Spec
	selects(t, "NetworkPolicy", rules.PodSelector, all.pod)
	if !slices.Equal(rules.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}) {
		t.Errorf("the policy is one of %v", rules.PolicyTypes)
	}
	in, out := map[string]bool{}, map[string]bool{}
	add := func(to map[string]bool, ports []networkingv1.NetworkPolicyPort) {
		for _, p := range ports {
			protocol := "TCP"
			if p.Protocol != nil {
				protocol = string(*p.Protocol)
			}
			if p.Port.Type == intstr.String && !hasPort(all.pod, p.Port.StrVal) {
				t.Errorf("the policy has the port %s, which the container does not have", p.Port.StrVal)
			}
			to[protocol+" "+p.Port.String()] = true
		}
	}
	for _, rule := range rules.Ingress {
		add(in, rule.Ports)
	}
	for _, rule := range rules.Egress {
		add(out, rule.Ports)
	}
	for _, p := range all.pod.Spec.Containers[0].Ports {
		if !in["TCP "+p.Name] {
			t.Errorf("the policy keeps everybody from the port %s", p.Name)
		}
	}
	wanted := append([]string{"UDP 53", "TCP 53"}, nextPorts(t, all)...)
	for _, port := range wanted {
		if !out[port] {
			t.Errorf("the policy does not let the pods reach %s", port)
		}
	}
}

// nextPorts are the ports to which the tunnels lead.
func nextPorts(t *testing.T, all objects) (ports []string) {
	t.Helper()
	var c struct {
		Tunnels []struct{ Forward json.RawMessage }
	}
	if err := yaml.Unmarshal([]byte(all.config("longhaul.yaml").Data["longhaul.yaml"]), &c); err != nil {
		t.Fatal(err)
	}
	for _, tunnel := range c.Tunnels {
		hops := []string{""}
		if json.Unmarshal(tunnel.Forward, &hops) != nil && json.Unmarshal(tunnel.Forward, &hops[0]) != nil {
			t.Fatalf("cannot read %s", tunnel.Forward)
		}
		for _, hop := range hops {
			port := hop[strings.LastIndex(hop, ":")+1:]
			if _, err := strconv.Atoi(port); err != nil {
				t.Fatal(err)
			}
			ports = append(ports, "TCP "+port)
		}
	}
	if len(ports) == 0 {
		t.Error("no next relay")
	}
	return ports
}

// checkPod checks what a pod's parts say of each other, that its namespace admits it, and that no
// container keeps a privilege that it does not name.
func checkPod(t *testing.T, all objects) {
	t.Helper()
	pod, namespace := all.pod, all.namespace()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	level := podsecurity.LevelVersion{Level: podsecurity.Level(namespace.Labels[podsecurity.EnforceLevelLabel]), Version: podsecurity.LatestVersion()}
	results := evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec)
	if result := policy.AggregateCheckResults(results); !result.Allowed || !level.Level.Valid() {
		t.Errorf("the namespace, at %q, refuses the pods: %s", level.Level, result.ForbiddenDetail())
	}
	for _, c := range all.configs {
		if c.Namespace != namespace.Name {
			t.Errorf("the ConfigMap %s is in %s, not in %s", c.Name, c.Namespace, namespace.Name)
		}
	}
	volumes := map[string]bool{}
	used := func(name string) {
		if all.configs[name] == nil {
			t.Errorf("a volume is of the ConfigMap %s, which is missing", name)
		}
	}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil {
			used(v.ConfigMap.Name)
		}
		if v.Projected != nil {
			for _, source := range v.Projected.Sources {
				used(source.ConfigMap.Name)
			}
		}
	}
	if profile := pod.Spec.SecurityContext.SeccompProfile; profile == nil || profile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod has the seccomp profile %v", profile)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if !strings.Contains(c.Image, "/longhaul:") {
			t.Errorf("%s has the image %s", c.Name, c.Image)
		}
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s mounts %s, which is missing", c.Name, m.Name)
			}
		}
		s := c.SecurityContext
		if s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
			s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
			t.Errorf("%s keeps privileges: %v", c.Name, s)
		}
	}
}
