"""Sentence patterns about shopping, food, people, home and daily life.

Three lines each: name and slots, English, Chinese.  A slot is `name=class`, where `@slot.link`
takes the class from the filler of an earlier slot.  In the sentences `{o.pl}` is a form,
`{v~s}` a verb agreeing with the subject `s`, and `{s?want|wants}` a choice by that agreement.
"""

PATTERNS = """
buy_several: s=S n=num o=shopping pl=shop t=past
{s} bought {n} {o.pl} {pl.at} {t}.
{s}{t}在{pl}买了{n}{o.mw}{o}。

past: s=S v=vt o=@v.objects t=near
{s} {v.past} {o.a} {t}.
{s}{t}{v}了{o.one}。

past_not: s=S v=vt o=@v.objects t=near
{s} didn't {v} {o.any} {t}.
{s}{t}没{v}{o}。

past_question: s=Q v=vgoods o=@v.objects t=past
Did {s} {v} {o.any} {t}?
{s}{t}{v}{o}了吗？

will_several: s=S v=vdo n=few o=@v.objects t=soon
{s} will {v} {n} {o.pl} {t}.
{s}{t}会{v}{n}{o.mw}{o}。

going_to: s=S v=vgoods n=few o=@v.objects t=later_on
{s} {s.be} going to {v} {n} {o.pl} {t}.
{s}{t}要{v}{n}{o.mw}{o}。

already: s=S n=num v=vget o=@v.objects t=today_part
{s} {s.have} already {v.pp} {n} {o.pl} {t}.
{s}{t}已经{v}了{n}{o.mw}{o}。

want: s=S v=vdo o=@v.objects pl=@v.places t=soon
{s} {s?want|wants} to {v} {o.a} {pl.at} {t}.
{s}{t}想在{pl}{v}{o.one}。

progressive: s=S v=vdo o=@v.objects pl=@v.places
{s} {s.be} {v.ing} {o.a} {pl.at}.
{s}正在{pl}{v}{o.one}。

progressive_color: s=S c=color o=wear_one p=P
{s} {s.be} looking for a {c} {o.own} for {p.obj}.
{s}正在给{p}找一{o.mw}{c}{o}。

price: c=color o=priced n=price pl=shop
This {c} {o} {pl.at} costs {n} yuan.
{pl}的这{o.mw}{c}{o}要{n}块钱。

price_question: n=few c=color o=priced_any pl=shop
How much are those {n} {c} {o.pl} {pl.at}?
{pl}的那{n}{o.mw}{c}{o}多少钱？

want_adjective: s=S a=wear_adj c=color o=wear p=P
{s} {s?want|wants} to buy {a.a} {c} {o} for {p.obj}.
{s}想给{p}买一{o.mw}{a.attr}{c}{o}。

compare_things: s=Q o=item p=P a=thing_adj
{s.poss} {o} is {a.comp} than {p.mine}.
{s}的{o}比{p}的{a}。

compare_books: o=reading a=read_adj p=P s=S
{s} {s?think|thinks} this {o} is {a.comp} than {p.mine}.
{s}觉得这{o.mw}{o}比{p}的{a}。

superlative_bought: s=S a=look_adj o=priced v=vtrade
This is the {a.sup} {o} that {s} {s.have} ever {v.pp}.
这是{s}{v}过的最{a}的{o}。

superlative_read: s=S a=read_adj o=reading t=past_far
This is the {a.sup} {o} that {s} read {t}.
这是{s}{t}看的最{a}的{o}。

good_but: p=P o=item a=thing_good b=thing_bad
{p.poss} {o} is very {a}, but it is too {b}.
{p}的{o}非常{a}，但是太{b}了。

spend: s=S n=price o=goods t=past
{s} spent {n} yuan on {o.a} {t}.
{s}{t}花{n}块钱买了{o.one}。

sell_to: s=S o=sellable p=P n=price t=near
{s} sold the {o} to {p.obj} for {n} yuan {t}.
{s}{t}把{o}以{n}块钱的价格卖给了{p}。

give_two: p=PP n=few o=groceries m=few q=prepared t=future_near
Please bring {p.obj} {n} {o.pl} and {m} {q.pl} {t}.
请{t}给{p}带{n}{o.mw}{o}和{m}{q.mw}{q}。

exchange: s=S c=color o=clothes a=size
{s} {s?want|wants} to exchange this {c} {o} for {a.compa} one.
{s}想把这{o.mw}{c}{o}换成一{o.mw}{a}一点儿的。

which_one: o=priced c=color d=color a=look_adj
Which {o} is {a.comp}, the {c} one or the {d} one?
{c}的{o}和{d}的{o}，哪{o.mw}更{a}？

whose: o=small c=color l=spot p=P s=pron_q
Is the {c} {o} {l} {s.mine} or {p.mine}?
{l}的{c}{o}是{s}的还是{p}的？

eat_or: s=Q v=vsort o=@v.objects q=@v.objects t=future_near
{s.do} {s} want to {v} {o.bare} or {q.bare} {t}?
{s}{t}想{v}{o}还是{q}？

usual_meal: s=S f=food d=drink t=part
{s} usually {s?eat|eats} {f.bare} and {s?drink|drinks} {d.bare} {t}.
{s}{t}通常吃{f}、喝{d}。

food_review: s=S l=eatery pl=anyplace a=food_good b=food_bad
{s} {s?think|thinks} the food at the {l} near the {pl} is {a} but too {b}.
{s}觉得{pl}附近那{l.mw}{l}的菜很{a}，但是太{b}了。

ordered_dish: s=S o=dish t=near a=food_bad
The {o} that {s} ordered {t} was too {a}.
{s}{t}点的那{o.mw}{o}太{a}了。

order_two: s=S n=few o=dish m=few d=drink p=P
{s} ordered {n} {o.pl} and {m} {d.pl} for {p.obj}.
{s}给{p}点了{n}{o.mw}{o}和{m}{d.mw}{d}。

cook_for: s=S o=dish p=P t=near
{s} cooked {o.a} for {p.obj} {t}.
{s}{t}给{p}做了{o.one}。

prefer: s=S o=food q=food t=part
{s} {s?prefer|prefers} {o.bare} to {q.bare} {t}.
比起{q}，{s}{t}更喜欢吃{o}。

fridge: n=num o=groceries m=num q=prepared
There are only {n} {o.pl} and {m} {q.pl} in the fridge.
冰箱里只有{n}{o.mw}{o}和{m}{q.mw}{q}。

bring_please: p=PP o=food d=drink t=future_near
Could you bring {p.obj} {o.a} and {d.a} {t}?
你{t}能给{p}带{o.one}和{d.one}吗？

finish_drink: s=S n=few d=drink p=P t=near
{s} drank {n} {d.pl} with {p.obj} {t}.
{s}{t}跟{p}一起喝了{n}{d.mw}{d}。

too_much: p=P f=food d=drink t=part
The doctor says {p} should eat more {f.bare} and drink less {d.bare} {t}.
医生说{p}{t}应该多吃{f}、少喝{d}。

put_where: c=color o=small l=spot p=P
Please put {p.poss} {c} {o} {l}.
请把{p}的{c}{o}放在{l}。

there_are: n=num c=color o=small l=spot
There are {n} {c} {o.pl} {l}.
{l}有{n}{o.mw}{c}{o}。

put_past: s=S c=color o=small l=spot t=near
{s} put the {c} {o} {l} {t}.
{s}{t}把{c}{o}放在了{l}。

not_there: p=P o=carry l=spot m=spot
{p.poss} {o.own} is {l}, not {m}.
{p}的{o}在{l}，不在{m}。

who_put: c=color o=small l=spot t=near
Who put this {c} {o} {l} {t}?
{t}谁把这{o.mw}{c}{o}放在{l}了？

gift: s=S p=P c=color o=wear t=past
{s} gave {p.obj} a {c} {o} {t}.
{s}{t}送了{p}一{o.mw}{c}{o}。

like_gift: s=N c=color o=wear_one p=pron_any t=past
{s} really {s?like|likes} the {c} {o} that {p} bought {t}.
{s}真的很喜欢{p}{t}买的那{o.mw}{c}{o}。

relative_thing: s=S v=vtrade o=item t=past a=thing_adj
The {o} that {s} {v.past} {t} is very {a}.
{s}{t}{v}的那{o.mw}{o}非常{a}。

relative_book: s=S v=vread o=reading t=near a=read_adj
The {o} that {s} {v.past} {t} is really {a}.
{s}{t}{v}的那{o.mw}{o}真{a}。

relative_where: s=Q v=vtrade o=small t=past c=color
Where is the {c} {o} that {s} {v.past} {t}?
{s}{t}{v}的那{o.mw}{c}{o}在哪儿？

relative_lent: s=S o=reading p=P t=past
{s} {s.have} already read the {o} that {p} bought {t}.
{s}已经看了{p}{t}买的那{o.mw}{o}。

not_returned: s=S c=color o=tool p=P
{s} {s.havent} returned the {c} {o} to {p.obj} yet.
{s}还没把{c}{o}还给{p}。

passive_broken: p=P c=color o=broken q=P t=near
{p.poss} {c} {o} was broken by {q.obj} {t}.
{p}的{c}{o}{t}被{q}弄坏了。

passive_taken: p=P c=color o=carry_color q=P t=near
{p.poss} {c} {o} was taken away by {q.obj} {t}.
{p}的{c}{o}{t}被{q}拿走了。

hand_over: c=color o=small p=P t=soon
Please give the {c} {o} to {p.obj} {t}.
请{t}把{c}{o}交给{p}。

how_many: n=Q v=vtrade o=goods pl=shop t=near
How many {o.pl} did {n} {v} {pl.at} {t}?
{n}{t}在{pl}{v}了几{o.mw}{o}？

help_buy: p=PP n=few o=shopping pl=shop
Can you help {p.obj} buy {n} {o.pl} {pl.at}?
你能帮{p}在{pl}买{n}{o.mw}{o}吗？

may_use: p=P c=color o=tool t=future
May I use {p.poss} {c} {o} {t}?
我{t}可以用{p}的{c}{o}吗？

two_jobs: s=S1_untitled a=job p=P1_untitled b=job
{s} {s.be} {a.a}, and {p} is {b.a}.
{s}是{a}，{p}是{b}。

works_at: s=S1_untitled j=office_job w=work c=city
{s} {s?work|works} as {j.a} at {w.a} in {c}.
{s}在{c}的一{w.mw}{w}当{j}。

child_dream: s=S1_untitled j=job k=job c=city
{s} wanted to be {j.a} as a child, but now {s.pro} {s.be} {k.a} in {c}.
{s}小时候想当{j}，但是现在在{c}当{k}。

people_there: n=num j=office_job m=num k=office_job w=work
There are {n} {j.pl} and {m} {k.pl} in this {w}.
这{w.mw}{w}里有{n}个{j}和{m}个{k}。

siblings: s=S n=two_to_four k=relative p=P1 m=two_to_four q=relative
{s} {s.have} {n} {k}s, and {p} has {m} {q}s.
{s}有{n}个{k}，{p}有{m}个{q}。

ages: k=young n=age j=young m=age
{k} is {n} years old, and {j} is {m}.
{k}{n}岁，{j}{m}岁。

both_traits: s=S a=trait b=trait
{s} {s.be} not only {a} but also {b}.
{s}不但{a}，而且{b}。

as_but: s=peer a=trait p=peer b=trait
{s} is as {a} as {p}, but not as {b}.
{s}跟{p}一样{a}，但是没有{p}{b}。

compare_people: s=peer a=trait p=peer b=trait
{s} is {a.comp} than {p}, but {p} is {b.comp}.
{s}比{p}{a}，但是{p}更{b}。

age_difference: s=peer n=num p=peer a=trait
{s} is {n} years older than {p}, but not as {a}.
{s}比{p}大{n}岁，但是没有{p}{a}。

superlative_person: s=S1 a=trait g=group b=trait
{s} {s.be} the {a.sup} and {b.sup} person in {g}.
{s}是{g}最{a}、最{b}的人。

why_mood: s=Q a=mood t=today
Why {s.be} {s} so {a} {t}?
{s}{t}为什么这么{a}？

mood_two: s=S a=mood_body b=mood_feeling t=near
{s} {s.was} a little {a} and very {b} {t}.
{s}{t}有点儿{a}，也非常{b}。

manner_past: s=peer m=manner a=@m.objects p=P t=near
{s} {m.past} {a} than {p} {t}.
{s}{t}{m}得比{p}{a}。

manner: g=group s=peer m=manner a=@m.objects p=peer
Everyone in {g} knows that {s} {m~s} {a} than {p}.
{g}的人都知道{s}{m}得比{p}{a}。
"""
