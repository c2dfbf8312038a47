import sys, random, time, collections
import importlib
from tests.fuzz import judge
kind, n, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
m=importlib.import_module("tests.fuzz."+kind)
t=time.time(); groups=collections.Counter(); first={}; slow=[]
for i in range(n):
    rng=random.Random(f"{seed}:{i}")
    a=time.time()
    text, call = m.case(rng)
    import faulthandler; faulthandler.dump_traceback_later(20, exit=True)
    open('/tmp/fz_now','w').write(f'{i} {text}')
    r=judge.run(call)
    faulthandler.cancel_dump_traceback_later()
    slow.append((time.time()-a,i,text))
    if r:
        key=r.split("(")[-1] + r[:70]
        groups[key]+=1; first.setdefault(key,(i,text,r))
print(n,"in",time.time()-t, "failures",sum(groups.values()))
for k,c in groups.most_common(40): print(c, first[k][0], first[k][1][:400], "\n    ->", first[k][2][:400])
print([(round(a,2),i,x[:80]) for a,i,x in sorted(slow,reverse=True)[:5]])
