package check

import (
	"cmp"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func or(a, b string) string { return cmp.Or(a, b) }

func accessor(t *testing.T, o runtime.Object) metav1.Object {
	t.Helper()
	m, err := meta.Accessor(o)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func typeOf(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// selects reports whether labels have all of selector, which must not be empty.
func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// hasPort reports whether a node has the named port.
func hasPort(set *apps.StatefulSet, name string, protocol core.Protocol) bool {
	for _, p := range set.Spec.Template.Spec.Containers[0].Ports {
		if p.Name == name && cmp.Or(p.Protocol, core.ProtocolTCP) == cmp.Or(protocol, core.ProtocolTCP) {
			return true
		}
	}
	return false
}
