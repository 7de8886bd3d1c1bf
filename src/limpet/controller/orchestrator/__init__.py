"""What the controller hears of Kubernetes' own objects (Nodes, Pods), and what it tells there.

Call `nodes` for the one watch of Nodes, `events` for what a person sees with `kubectl describe`,
`object_status` for the conditions of Limpet's own objects (`conditions` says which, pure), `pods`
for addresses that two hold (`held_twice`, pure).
`account_check` asks whose a pod's token is (`account` judges, pure), `reached_at` tells nodes where
the controller is. Must not import `controller.api` or `admin`.
"""
