package notebooks

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

const plainManifest = `# a comment
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  activeDeadlineSeconds: 3600
  backoffLimit: 2
  completions: 8
  parallelism: 3
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: gpulab.local/notebook:1
          command: [python, train.py]
          args: ["--epochs", "$(EPOCHS)", "$$(HOME)", "$(NOBODY)"]
          workingDir: work
          env:
            - {name: EPOCHS, value: "40"}
            - name: MORE
              value: $(EPOCHS)0
          resources:
            limits: {nvidia.com/gpu: 1, memory: 512Mi}
            requests: {cpu: 500m, memory: 256Mi, nvidia.com/gpu: "1"}
`

// A manifest becomes a request as somebody could have made it by hand.
func TestManifest(t *testing.T) {
	r := JobRequest{Program: Program{Script: plainManifest}}
	if err := r.prepare("ada"); err != nil {
		t.Fatal(err)
	}
	want := JobRequest{
		Program: Program{Args: []string{"python", "train.py", "--epochs", "40", "$(HOME)", "$(NOBODY)"}, Dir: "work", Env: map[string]string{"EPOCHS": "40", "MORE": "400"}},
		Name:    "train", GPUs: new(1), Limit: time.Hour, Retries: new(2), Array: "0-7%3",
	}
	want.CPUs, want.Memory, want.image, want.lines = 0.5, 512<<20, "gpulab.local/notebook:1", r.lines
	if !reflect.DeepEqual(r, want) {
		t.Errorf("it is\n%+v, want\n%+v", r, want)
	}
	h := newHouse(t, 2)
	l := h.submit(h.alice, JobRequest{Program: Program{Script: plainManifest}})
	if !l.IsArray() || l.Profile != "gpu" || l.Title != "train" || l.Job.Retries != 2 {
		t.Errorf("it becomes %+v, %+v", l, l.Job)
	}
	json := h.submit(h.alice, JobRequest{File: "hello.json", Program: Program{Script: `{"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {"containers": [{"command": ["true"], "env": [{"name": "A", "value": "x"}]}]}}}}`}})
	if json.Title != "hello" || json.Profile != "cpu" || json.GPUs != 0 {
		t.Errorf("from JSON: %+v", json)
	}
	if p, err := h.service.Program(t.Context(), json.ID); err != nil || p.Env["A"] != "x" || len(p.Args) != 1 {
		t.Errorf("it runs %+v, %v", p, err)
	}
}

// What a job here cannot have is refused by its name and line.
func TestManifestRefused(t *testing.T) {
	const head = "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n        - command: [\"true\"]\n"
	pod := func(line string) string { return head + "      " + line + "\n" }
	container := func(line string) string { return head + "          " + line + "\n" }
	h := newHouse(t, 2)
	for manifest, words := range map[string]string{
		pod("volumes: [{name: x, hostPath: {path: /}}]"):                        "Line 8: spec.template.spec.volumes is not supported in a job. Your home and",
		pod("hostNetwork: true"):                                                "Line 8: spec.template.spec.hostNetwork is not supported",
		pod("serviceAccountName: default"):                                      "Jobs have no access to the cluster.",
		pod("nodeName: head"):                                                   "A profile says on which machines",
		pod("nodeSelector: {a: b}"):                                             "spec.template.spec.nodeSelector is",
		pod("initContainers: [{command: [a]}]"):                                 "initContainers is not supported",
		pod("dnsPolicy: None"):                                                  `dnsPolicy is "None"; it has to be ClusterFirst.`,
		pod("schedulerName: mine"):                                              "schedulerName is not default-scheduler. A profile says on which machines it runs.",
		pod("terminationGracePeriodSeconds: 600"):                               "terminationGracePeriodSeconds is not 30. A job has 30 s after SIGTERM.",
		pod("restartPolicy: Always"):                                            `Line 8: spec.template.spec.restartPolicy is "Always"; it has to be Never or OnFailure.`,
		container("securityContext: !!null {privileged: true}"):                 "securityContext is not supported",
		container("securityContext: {privileged: true}"):                        "Line 8: spec.template.spec.containers[0].securityContext is not supported",
		container("volumeMounts: [{name: a, mountPath: /b}]"):                   "volumeMounts is not supported",
		container("image: evil.example/miner:latest"):                           `Line 8: image "evil.example/miner:latest" is that of no profile of this lab. There are cpu (gpulab.local/notebook:1, cpu 1, memory 1Gi), gpu`,
		container("resources: {limits: {memory: 64Gi}}"):                        "Line 8: no profile of this lab without a GPU has 64 GiB of memory. The largest is cpu, which has 1 core and 1 GiB of memory.",
		container("resources: {limits: {cpu: 64}}"):                             "Line 8: no profile of this lab without a GPU has 64 cores.",
		container("resources: {limits: {nvidia.com/gpu: 1.5}}"):                 "has to be a whole number of GPUs",
		container("resources: {limits: {nvidia.com/gpu: 1e30}}"):                "has to be a whole number of GPUs",
		container("resources: {limits: {nvidia.com/gpu: -1}}"):                  "is not a quantity",
		container("resources: {limits: {amd.com/gpu: 1}}"):                      "resources.limits.amd.com/gpu is not supported",
		container("resources: {limits: {nvidia.com/gpu: 5}}"):                   "It asks for 5 GPUs, but no machine",
		container("env: [{name: A, valueFrom: {secretKeyRef: {}}}]"):            "env[0].valueFrom is not supported",
		container("env: [{name: 'A B', value: x}]"):                             "has no name that a variable can have",
		container("env: [{name: A, value: 1}]"):                                 "has to be text; write a number or a truth in quotation marks",
		container("resources: {limits: {cpu: 1111111111111111111e2000000000}}"): "is not a quantity",
		container("resources: {limits: {memory: 1e2000000000}}"):                "is not a quantity",
		container("env: [{name: A, value: " + strings.Repeat("x", 9000) + "}, {name: A, value: " + strings.Repeat("$(A)", 2000) + "}, {name: A, value: " + strings.Repeat("$(A)", 2000) + "}]"): "longer than 16 KiB",
		container("env: [{name: A, value: " + strings.Repeat("x", 9000) + "}]\n          args: [" + strings.TrimSuffix(strings.Repeat("$(A), ", 1000), ", ") + "]"):                             "longer than 16 KiB",
		container("args: [--epochs, 40]"):                  "Line 8: spec.template.spec.containers[0].args[1] has to be text",
		container("workingDir: /etc"):                      "has to lie in the home",
		head + "  backoffLimit: 99\n":                      "Line 8: spec.backoffLimit has to be a whole number from 0 to 10.",
		head + "  parallelism: 4\n":                        "spec.parallelism needs spec.completions",
		head + "  activeDeadlineSeconds: 1\n":              "spec.activeDeadlineSeconds has to be a whole number from 10",
		head + "  suspend: true\n":                         "spec.suspend is",
		head + "metadata: {namespace: kube-system}\n":      "Line 8: metadata.namespace is not default. A job runs in your own namespace.",
		head + "---\n" + head:                              "One file is one job.",
		head + "kind: Job\n":                               "Line 8: kind is said twice.",
		strings.Replace(head, "kind: Job", "kind: Pod", 1): `Line 2: kind is "Pod"; it has to be Job.`,
		strings.Replace(head, "batch/v1", "v1", 1):         `apiVersion is "v1"`,
		strings.Replace(head, "[\"true\"]", "[]", 1):       "has no spec.template.spec.containers[0].command",
		"apiVersion: batch/v1\nkind: Job\n":                "has no spec.template.spec.containers[0].command",
		"apiVersion: batch/v1\nspec: &a {template: *a}\n":  "",
		"kind: [\n": "This is no manifest that can be read",
		"spec: 3\n": "Line 1: spec has to be a mapping",
	} {
		_, err := h.service.Submit(t.Context(), h.alice, JobRequest{Program: Program{Script: manifest}})
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s\n%v, want %q", manifest, err, words)
		}
		no, impossible := (*JobError)(nil), (*ObstacleError)(nil)
		if !errors.As(err, &no) && !errors.As(err, &impossible) {
			t.Errorf("%s\n%T is no refusal", manifest, err)
		}
	}
	if _, err := h.service.Submit(t.Context(), h.alice, JobRequest{File: "values.yaml", Program: Program{Script: "echo: 1\n"}}); err == nil || !strings.Contains(err.Error(), "Line 1: echo is not supported") {
		t.Errorf("a file that is no manifest: %v", err)
	}
}

// What kubectl and Kubernetes write of their own accord says nothing about a job here.
func TestManifestOfKubectl(t *testing.T) {
	h := newHouse(t, 2)
	for name, manifest := range map[string]string{
		"kubectl create job --dry-run=client -o yaml": `apiVersion: batch/v1
kind: Job
metadata:
  creationTimestamp: null
  name: count
spec:
  template:
    metadata:
      creationTimestamp: null
    spec:
      containers:
      - command: [python3, -c, "print(6*7)"]
        image: gpulab.local/notebook:1
        name: count
        resources: {}
      restartPolicy: Never
status: {}
`,
		"with labels": `apiVersion: batch/v1
kind: Job
metadata: {name: count, labels: {kueue.x-k8s.io/queue-name: a}, annotations: {note: b}}
spec: {template: {metadata: {labels: {app: count}}, spec: {containers: [{command: ["true"]}]}}}
`,
		"JSON": "{\n\t\"apiVersion\": \"batch/v1\",\n\t\"kind\": \"Job\",\n\t\"metadata\": {\"name\": \"count\", \"creationTimestamp\": null},\n" +
			"\t\"spec\": {\"template\": {\"spec\": {\"containers\": [{\"command\": [\"true\"], \"resources\": {}}], \"volumes\": []}}},\n\t\"status\": {}\n}\n",
		"kubectl get job -o yaml": `apiVersion: batch/v1
kind: Job
metadata:
  creationTimestamp: "2026-11-29T08:00:00Z"
  generation: 1
  labels: {controller-uid: 1f0c, job-name: count}
  name: count
  namespace: default
  ownerReferences: [{apiVersion: batch/v1, kind: CronJob, name: nightly, uid: 2f0c}]
  resourceVersion: "4711"
  uid: 1f0c
spec:
  backoffLimit: 6
  completionMode: NonIndexed
  completions: 1
  manualSelector: false
  parallelism: 1
  podReplacementPolicy: TerminatingOrFailed
  selector:
    matchLabels: {batch.kubernetes.io/controller-uid: 1f0c}
  suspend: false
  template:
    metadata:
      creationTimestamp: null
      labels: {batch.kubernetes.io/controller-uid: 1f0c}
    spec:
      containers:
      - command: [python3, -c, "print(6*7)"]
        imagePullPolicy: IfNotPresent
        name: count
        resources: {}
        terminationMessagePath: /dev/termination-log
        terminationMessagePolicy: File
      dnsPolicy: ClusterFirst
      restartPolicy: Never
      schedulerName: default-scheduler
      securityContext: {}
      terminationGracePeriodSeconds: 30
status:
  ready: 0
  startTime: "2026-11-29T08:00:00Z"
`,
	} {
		l, err := h.service.Submit(t.Context(), h.alice, JobRequest{File: "count.yaml", Program: Program{Script: manifest}})
		if err != nil || l.Title != "count" {
			t.Errorf("%s: %q, %v", name, l.Title, err)
		}
	}
}

func TestIsManifest(t *testing.T) {
	for text, want := range map[string]bool{
		plainManifest: true, "---\nkind: Job\n": true, "{\n \"kind\": 1}": true, "#!/bin/bash\nkind: x\n": false, "# c\necho kind: x\n": false, "{ echo; }\n": false, "": false, "python train.py\n": false,
	} {
		if got := isManifest("", text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// Whatever is written in a manifest is read or refused, and no more than what was
// meant comes through.
func FuzzManifest(f *testing.F) {
	f.Add(plainManifest)
	f.Add("apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {hostPID: true, containers: [{command: [a]}]}}}\n")
	f.Add("a: &a [*a]\nkind: Job\n")
	f.Add(fmt.Sprintf("kind: %s\n", strings.Repeat("[", 5000)))
	f.Fuzz(func(t *testing.T, text string) {
		r := JobRequest{File: "x.yaml", Program: Program{Script: text}}
		err := r.prepare("ada")
		if no := (*JobError)(nil); err != nil && (!errors.As(err, &no) || no.Text == "") {
			t.Fatalf("%T: %v", err, err)
		}
		if err != nil {
			return
		}
		if len(r.Args) == 0 || r.Script != "" || strings.HasPrefix(r.Dir, "/") || strings.HasPrefix(r.Dir, "..") || *r.Retries > MaxRetries || r.Limit > MaxJobLimit || r.GPUs != nil && *r.GPUs < 0 {
			t.Fatalf("it became %+v", r)
		}
	})
}
