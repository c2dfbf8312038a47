import sys, random, time, collections, faulthandler
from tests.fuzz import judge
from tests.fuzz.commands import Workshop, limited_memory
n, seed = int(sys.argv[1]), sys.argv[2]
only = int(sys.argv[3]) if len(sys.argv)>3 else None
t=time.time(); groups=collections.Counter(); first={}; slow=[]
with limited_memory(16), Workshop() as w:
  for i in range(n):
    if only is not None and i!=only: continue
    rng=random.Random(f"{seed}:{i}")
    a=time.time()
    text, call = w.case(rng)
    faulthandler.dump_traceback_later(30, exit=True)
    open('/tmp/fz_now','w').write(f'{i} {text}')
    r=judge.run(call)
    faulthandler.cancel_dump_traceback_later()
    slow.append((time.time()-a,i,text))
    if only is not None: print(text, r)
    if r:
        key=r.split("(")[-1] + r[:50]
        groups[key]+=1; first.setdefault(key,(i,text,r))
print(n,"in",time.time()-t, "failures",sum(groups.values()))
for k,c in groups.most_common(40): print(c, first[k][0], first[k][1][:300], "\n    ->", first[k][2][:500])
print([(round(a,2),i,x[:80]) for a,i,x in sorted(slow,reverse=True)[:8]])
