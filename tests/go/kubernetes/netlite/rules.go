package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const table = "netlite"

// world is what a ruleset follows from.
type world struct {
	pods       []*corev1.Pod // those with an IPv4 address of their own, by address
	namespaces map[string]labels.Set
	policies   []*netv1.NetworkPolicy
	podCIDR    string
}

// hasAddress says whether a pod has an address that policies apply to.
func hasAddress(p *corev1.Pod) bool {
	address, err := netip.ParseAddr(p.Status.PodIP)
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return err == nil && address.Is4() && !p.Spec.HostNetwork && !ended
}

// ruleset is the whole nftables table, as input for `nft -f -`, which replaces it in one transaction. The rules of a
// pod that a policy selects are one chain for each direction: what is allowed returns, the rest is dropped.
func (w *world) ruleset() string {
	var out strings.Builder
	var ingress, egress []string
	fmt.Fprintf(&out, "add table inet %s\ndelete table inet %s\ntable inet %s {\n", table, table, table)
	for _, pod := range w.pods {
		ip := pod.Status.PodIP
		chain := strings.ReplaceAll(ip, ".", "_")
		if rules, isolated := w.allowed(pod, netv1.PolicyTypeIngress); isolated {
			writeChain(&out, "in_"+chain, rules)
			ingress = append(ingress, ip+" : jump in_"+chain)
		}
		if rules, isolated := w.allowed(pod, netv1.PolicyTypeEgress); isolated {
			writeChain(&out, "out_"+chain, rules)
			egress = append(egress, ip+" : jump out_"+chain)
		}
	}
	// Nothing that a pod starts may leave the node. This also answers at once a SYN to a service address that
	// kube-proxy has not programmed yet; unanswered, its conntrack entry would keep the retries away from DNAT.
	leaving := fmt.Sprintf("    ip saddr %s oifname \"eth0\" reject\n", w.podCIDR)
	writeHook(&out, "forward", leaving+verdicts("saddr", egress)+verdicts("daddr", ingress))
	writeHook(&out, "input", verdicts("saddr", egress)) // to the node itself
	out.WriteString("}\n")
	return out.String()
}

func writeChain(out *strings.Builder, name string, rules []string) {
	fmt.Fprintf(out, "  chain %s {\n", name)
	for _, rule := range rules {
		fmt.Fprintf(out, "    %s\n", rule)
	}
	fmt.Fprintf(out, "    drop\n  }\n")
}

// writeHook: after kube-proxy's DNAT, so that a policy sees the pod behind a service. Connections that are there stay.
func writeHook(out *strings.Builder, hook, rules string) {
	fmt.Fprintf(out, "  chain %s {\n    type filter hook %s priority -5; policy accept;\n", hook, hook)
	fmt.Fprintf(out, "    ct state established,related accept\n%s  }\n", rules)
}

func verdicts(side string, chains []string) string {
	if len(chains) == 0 {
		return ""
	}
	return fmt.Sprintf("    ip %s vmap { %s }\n", side, strings.Join(chains, ", "))
}

// allowed is what all policies together let a pod do in one direction, and whether any of them isolates it there.
func (w *world) allowed(pod *corev1.Pod, direction netv1.PolicyType) (rules []string, isolated bool) {
	for _, policy := range w.policies {
		if policy.Namespace != pod.Namespace || !selects(&policy.Spec.PodSelector, pod.Labels) ||
			!slices.Contains(policyTypes(policy), direction) {
			continue
		}
		isolated = true
		if direction == netv1.PolicyTypeIngress {
			for _, rule := range policy.Spec.Ingress {
				for _, from := range w.remotes("saddr", policy.Namespace, rule.From) {
					rules = append(rules, returns(from.match, rule.Ports, pod)...)
				}
			}
		} else {
			for _, rule := range policy.Spec.Egress {
				for _, to := range w.remotes("daddr", policy.Namespace, rule.To) {
					rules = append(rules, returns(to.match, rule.Ports, to.pod)...)
				}
			}
		}
	}
	return rules, isolated
}

// policyTypes has the API's default for a policy that names none.
func policyTypes(policy *netv1.NetworkPolicy) []netv1.PolicyType {
	if len(policy.Spec.PolicyTypes) > 0 {
		return policy.Spec.PolicyTypes
	}
	if len(policy.Spec.Egress) > 0 {
		return []netv1.PolicyType{netv1.PolicyTypeIngress, netv1.PolicyTypeEgress}
	}
	return []netv1.PolicyType{netv1.PolicyTypeIngress}
}

// remote is the other end of a connection: how nftables matches it, and the pod that it is, if it is one.
type remote struct {
	match string
	pod   *corev1.Pod
}

// remotes are the ends that a rule's peers stand for. No peers: everybody, and each pod by itself for named ports.
func (w *world) remotes(side, namespace string, peers []netv1.NetworkPolicyPeer) []remote {
	var out []remote
	if len(peers) == 0 {
		out = append(out, remote{})
		peers = []netv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}
	}
	for _, peer := range peers {
		if block := peer.IPBlock; block != nil {
			if !strings.Contains(block.CIDR, ":") {
				out = append(out, remote{match: blockMatch(side, block)})
			}
			continue
		}
		for _, pod := range w.pods {
			if w.isPeer(pod, namespace, peer) {
				out = append(out, remote{"ip " + side + " " + pod.Status.PodIP, pod})
			}
		}
	}
	return out
}

func blockMatch(side string, block *netv1.IPBlock) string {
	match := "ip " + side + " " + block.CIDR
	if len(block.Except) > 0 {
		match += " ip " + side + " != { " + strings.Join(block.Except, ", ") + " }"
	}
	return match
}

func (w *world) isPeer(pod *corev1.Pod, namespace string, peer netv1.NetworkPolicyPeer) bool {
	there := pod.Namespace == namespace
	if peer.NamespaceSelector != nil {
		there = selects(peer.NamespaceSelector, w.namespaces[pod.Namespace])
	}
	return there && (peer.PodSelector == nil || selects(peer.PodSelector, pod.Labels))
}

func selects(selector *metav1.LabelSelector, set labels.Set) bool {
	compiled, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && compiled.Matches(set)
}

// returns are the rules that let packets to some ports of a pod pass.
func returns(match string, ports []netv1.NetworkPolicyPort, to *corev1.Pod) []string {
	if len(ports) == 0 {
		return []string{strings.TrimSpace(match + " return")}
	}
	var out []string
	for _, port := range ports {
		for _, wanted := range portMatches(port, to) {
			out = append(out, strings.TrimSpace(match+" "+wanted+" return"))
		}
	}
	return out
}

// portMatches is empty for a named port that the pod does not have.
func portMatches(port netv1.NetworkPolicyPort, to *corev1.Pod) []string {
	protocol := corev1.ProtocolTCP
	if port.Protocol != nil {
		protocol = *port.Protocol
	}
	name := strings.ToLower(string(protocol))
	switch {
	case port.Port == nil:
		return []string{"meta l4proto " + name}
	case port.Port.Type == intstr.String:
		return namedPorts(to, port.Port.StrVal, protocol)
	case port.EndPort != nil:
		return []string{fmt.Sprintf("%s dport %d-%d", name, port.Port.IntVal, *port.EndPort)}
	default:
		return []string{fmt.Sprintf("%s dport %d", name, port.Port.IntVal)}
	}
}

func namedPorts(pod *corev1.Pod, name string, protocol corev1.Protocol) []string {
	if pod == nil {
		return nil
	}
	var out []string
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, port := range container.Ports {
			if port.Name == name && port.Protocol == protocol { // the API server fills in TCP
				out = append(out, fmt.Sprintf("%s dport %d", strings.ToLower(string(protocol)), port.ContainerPort))
			}
		}
	}
	return out
}
