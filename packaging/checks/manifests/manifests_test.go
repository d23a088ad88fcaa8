// Package manifests checks packaging/kubernetes against Kubernetes' own types. It is a
// module of its own, so that longhaul does not depend on them.
package manifests

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"sigs.k8s.io/yaml"
)

const dir = "../../kubernetes/"

// load decodes the objects of a file, by kind. A key that Kubernetes does not know, or a
// value of another type, is an error.
func load(t *testing.T, name string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(dir + name)
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]any{}
	for part := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(part, &kind); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var object any
		switch kind.APIVersion + " " + kind.Kind {
		case "v1 Namespace":
			object = &corev1.Namespace{}
		case "v1 ConfigMap":
			object = &corev1.ConfigMap{}
		case "v1 Service":
			object = &corev1.Service{}
		case "apps/v1 Deployment":
			object = &appsv1.Deployment{}
		case "apps/v1 DaemonSet":
			object = &appsv1.DaemonSet{}
		case "policy/v1 PodDisruptionBudget":
			object = &policyv1.PodDisruptionBudget{}
		default:
			t.Fatalf("%s: unknown %s of %s", name, kind.Kind, kind.APIVersion)
		}
		if err := yaml.UnmarshalStrict(part, object); err != nil {
			t.Fatalf("%s: %s: %v", name, kind.Kind, err)
		}
		if objects[kind.Kind] != nil {
			t.Fatalf("%s has two of the kind %s", name, kind.Kind)
		}
		objects[kind.Kind] = object
	}
	return objects
}

func TestRelay(t *testing.T) {
	objects := load(t, "relay.yaml")
	deployment := objects["Deployment"].(*appsv1.Deployment)
	pod := deployment.Spec.Template
	checkPod(t, pod, objects)
	selects(t, "Deployment", deployment.Spec.Selector.MatchLabels, pod)
	selects(t, "Service", objects["Service"].(*corev1.Service).Spec.Selector, pod)
	selects(t, "PodDisruptionBudget", objects["PodDisruptionBudget"].(*policyv1.PodDisruptionBudget).Spec.Selector.MatchLabels, pod)
	for _, port := range objects["Service"].(*corev1.Service).Spec.Ports {
		if !slices.ContainsFunc(pod.Spec.Containers[0].Ports, func(p corev1.ContainerPort) bool { return p.Name == port.TargetPort.StrVal }) {
			t.Errorf("the Service leads to the port %q, which the container does not have", port.TargetPort.StrVal)
		}
	}
}

func TestNode(t *testing.T) {
	objects := load(t, "node.yaml")
	set := objects["DaemonSet"].(*appsv1.DaemonSet)
	checkPod(t, set.Spec.Template, objects)
	selects(t, "DaemonSet", set.Spec.Selector.MatchLabels, set.Spec.Template)

	// The patch changes the command of each first container, and nothing else.
	before, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(dir + "node-undo.yaml")
	if err != nil {
		t.Fatal(err)
	}
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

func selects(t *testing.T, what string, selector map[string]string, pod corev1.PodTemplateSpec) {
	t.Helper()
	if len(selector) == 0 || !labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
		t.Errorf("the %s selects %v, the pods have %v", what, selector, pod.Labels)
	}
}

// checkPod checks what a pod's parts say of each other, and that no container keeps a
// privilege that it does not name.
func checkPod(t *testing.T, pod corev1.PodTemplateSpec, objects map[string]any) {
	t.Helper()
	namespace := objects["Namespace"].(*corev1.Namespace).Name
	config := objects["ConfigMap"].(*corev1.ConfigMap)
	if config.Namespace != namespace {
		t.Errorf("the ConfigMap is in %s, not in %s", config.Namespace, namespace)
	}
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil && v.ConfigMap.Name != config.Name {
			t.Errorf("the volume %s is of the ConfigMap %s, which is missing", v.Name, v.ConfigMap.Name)
		}
	}
	if profile := pod.Spec.SecurityContext.SeccompProfile; profile == nil || profile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("the pod has the seccomp profile %v", profile)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
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
