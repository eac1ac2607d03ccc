"""Sentence patterns about travel, time, work, school, health, hotels and the weather.

The notation is that of `patterns_daily`.
"""

PATTERNS = """
go_by: s=S tr=transport c=@tr.next t=later_on
{s} will go to {c} by {tr} {t}.
{s}{t}会坐{tr}去{c}。

went_with: s=S c=city p=P t=past
{s} went to {c} with {p.obj} {t}.
{s}{t}跟{p}一起去了{c}。

travel_time: n=minutes a=anyplace b=anyplace tr=city_transport
It takes {n} minutes to get from the {a} to the {b} by {tr}.
从{a}坐{tr}到{b}要{n}分钟。

how_long: a=anyplace b=anyplace tr=city_transport
How long does it take to get from the {a} to the {b} by {tr}?
从{a}坐{tr}到{b}要多久？

far_taxi: a=anyplace b=anyplace s=S tr=road_transport
The {a} is far from the {b}, so {s} will take a {tr}.
{a}离{b}很远，所以{s}会坐{tr}。

near_either: a=amenity b=amenity c=anyplace
Excuse me, is there {a.a} or {b.a} near the {c}?
请问，{c}附近有{a}或者{b}吗？

take_me: p=PP b=anyplace d=daypart h=@d.clock
Please take {p.obj} to the {b} at {h} {d}.
请{d}{h}把{p}送到{b}。

train_leaves: tr=transport c=@tr.next d=daypart h=@d.clock
The {tr} to {c} leaves at {h} {d}.
去{c}的{tr}{d}{h}出发。

arrive: s=S c=city d=daypart h=@d.clock
{s} will arrive in {c} at {h} {d}.
{s}{d}{h}会到{c}。

plan_stay: s=S c=city n=stay p=P
{s} {s?plan|plans} to stay in {c} for {n} with {p.obj}.
{s}打算跟{p}一起在{c}住{n}。

lived_for: s=S c=city n=months p=P
{s} {s.have} lived in {c} with {p.obj} for {n}.
{s}跟{p}一起在{c}住了{n}了。

visited: s=S pl=sight c=city t=past_wide
{s} visited {pl.a} in {c} {t}.
{s}{t}参观了{c}的一{pl.mw}{pl}。

never_been: s=S c=city p=P d=city
{s} {s.have} been to {c} with {p.obj}, but never to {d}.
{s}跟{p}一起去过{c}，但是从来没去过{d}。

times_been: s=S n=few c=city p=P
{s} {s.have} been to {c} with {p.obj} {n.times}.
{s}跟{p}一起去过{n}次{c}。

ever_been: s=Q t=transport c=@t.next p=P
{s.have} {s} ever been to {c} with {p.obj} by {t}?
{s}跟{p}一起坐{t}去过{c}吗？

lost_item: s=S o=carry_color pl=public t=near c=color
{s} lost a {c} {o} {pl.at} {t}.
{s}{t}在{pl}丢了一{o.mw}{c}{o}。

stolen: p=P o=carry pl=public t=near
{p.poss} {o} was stolen {pl.at} {t}.
{p}的{o}{t}在{pl}被偷了。

left_behind: s=S o=carry_color pl=public t=near c=color
{s} left the {c} {o} {pl.at} {t}.
{s}{t}把{c}{o}忘在{pl}了。

commute: s=S tr=city_transport a=workday b=workday t=habit
{s} {s?go|goes} from the {a} to the {b} by {tr} {t}.
{s}{t}坐{tr}从{a}去{b}。

how_go: s=Q x=workday b=anyplace a=city_transport t=often
{s.do} {s} go from the {x} to the {b} by {a} {t}?
{s}{t}坐{a}从{x}去{b}吗？

tickets_to: s=S n=few c=china_city d=daypart h=@d.clock
{s} {s?need|needs} {n} train tickets to {c} for {h} {d}.
{s}需要{n}张{d}{h}去{c}的火车票。

birthdays: p=P d=date q=P e=date
{p.poss} birthday is on {d}, and {q.mine} is on {e}.
{p}的生日是{d}，{q}的是{e}。

arrive_date: s=S c=city d=date p=P
{s} will leave for {c} with {p.obj} on {d}.
{s}{d}会跟{p}一起出发去{c}。

routine: s=S f=frequency a=chore t=@a.places h=@t.clock
{s} {f} {a~s} at {h} {t}.
{s}{f}{t}{h}{a}。

daily_late: h=clock s=S a=daily t=near_day
It was already {h} when {s} {a.past} {t}.
{s}{t}{a}的时候已经{h}了。

activity_past: s=S a=placed pl=@a.places p=P t=near_day
{s} {a.past} with {p.obj} {pl.at} {t}.
{s}{t}跟{p}一起在{pl}{a}了。

activity_now: s=S a=placed pl=@a.places p=P
{s} {s.be} {a.ing} with {p.obj} {pl.at} now.
{s}现在正跟{p}一起在{pl}{a}。

because_not: s=S a=repeat m=mood_bad t=near_day
{s} didn't {a} {t} because {s.pro} {s.was} {m}.
{s}{t}没{a}，因为{s.pro}很{m}。

if_weather: w=weather s=S a=home t=future_near c=city
If it {w.s} in {c} {t}, {s} will stay at home and {a}.
如果{c}{t}{w}，{s}就待在家里{a}。

lets: a=placed pl=@a.places p=P t=soon_day
Let's {a} with {p.obj} {pl.at} {t}.
我们{t}跟{p}一起在{pl}{a}吧。

when_will: s=Q a=placed pl=@a.places p=P
When will {s} {a} with {p.obj} {pl.at}?
{s}什么时候会跟{p}一起在{pl}{a}？

speaks: s=S a=language b=language c=language
{s} can speak {a} and {b}, but not {c}.
{s}会说{a}和{b}，但是不会说{c}。

speaks_better: s=peer a=language p=peer m=level
{s} speaks {a} {m} than {p}.
{s}{a}说得比{p}{m}。

studied_language: s=S a=language n=months pl=academy c=city
{s} studied {a} at {pl.a} in {c} for {n}.
{s}在{c}的一{pl.mw}{pl}学了{n}{a}。

started_learning: s=S a=language t=past_far b=language m=subject_adj
{s} started learning {a} {t}, but {s.pro} {s?find|finds} {b} {m.comp}.
{s}{t}开始学{a}，但是{s.pro}觉得{b}更{m}。

nationality: s=S1 a=country p=P1 b=country
{s} {s.be} from {a}, but {p} is from {b}.
{s}是{a}人，但是{p}是{b}人。

meet_at: s=S p=P pl=public d=daypart h=@d.clock
{s} will meet {p.obj} {pl.at} at {h} {d}.
{s}{d}{h}会在{pl}见{p}。

call_at: q=PP d=daypart h=@d.clock
Please call {q.obj} at {h} {d}.
请{d}{h}给{q}打电话。

tell_cannot: p=P s=PP a=repeat t=soon_day
Please tell {p.obj} that {s} can't {a} {t}.
请告诉{p}，{s}{t}不能{a}。

called_times: s=S n=few p=P c=city t=near
{s} called {p.obj} {n.times} from {c} {t}.
{s}{t}从{c}给{p}打了{n}次电话。

when_called: p=P s=S a=home t=near_day
When {p} called {s.obj} {t}, {s.pro} {s.was} {a.ing}.
{p}{t}给{s}打电话的时候，{s.pro}正在{a}。

before_doing: s=S f=frequency a=home b=unwind
Before {a.ing}, {s} {f} {b~s}.
{a}以前，{s}{f}{b}。

after_doing: s=S a=home b=repeat t=soon_day p=P
After {a.ing}, {s} will {b} with {p.obj} {t}.
{t}{a}以后，{s}会跟{p}一起{b}。

as_soon_as: s=S pl=arrival p=P c=city
As soon as {s} {s?arrive|arrives} at the {pl} in {c}, {s.pro} will call {p.obj}.
{s}一到{c}的{pl}，就会给{p}打电话。

forgot: s=S a=favor t=near_day p=P
{s} forgot to {a} for {p.obj} {t}.
{s}{t}忘了帮{p}{a}。

must_before: s=S a=favor d=daypart h=@d.clock
{s} must {a} before {h} {d}.
{s}必须在{d}{h}以前{a}。

cannot_because: s=S a=repeat b=favor t=soon_day
{s} can't {a} {t} because {s.pro} {s.have} to {b}.
{s}{t}不能{a}，因为{s.pro}得{b}。

would_like: s=Q a=repeat p=pron_any t=soon_day
Would {s} like to {a} with {p.obj} {t}?
{s}{t}愿意跟{p}一起{a}吗？

hope: s=S p=P c=city t=future_far
{s} {s?hope|hopes} to travel to {c} with {p.obj} {t}.
{s}希望{t}能跟{p}一起去{c}旅行。

likes_but: s=S a=repeat p=P b=repeat
{s} {s?like|likes} {a.ing} with {p.obj}, but {s.pro} {s.dont} like {b.ing}.
{s}喜欢跟{p}一起{a}，但是不喜欢{b}。

habit_with: s=S f=frequency a=repeat p=P t=customary
{s} {f} {a~s} with {p.obj} {t}.
{s}{t}{f}跟{p}一起{a}。

more_fun: s=S a=repeat b=repeat m=activity_adj
{s} {s?think|thinks} {a.ing} is {m.comp} than {b.ing}.
{s}觉得{a}比{b}{m}。

hurts_so: s=S1 b=body c=clinic p=P t=future
{s.poss} {b} hurts, so {s.pro} will go to the {c} with {p.obj} {t}.
{s}{b}疼，所以{s.pro}{t}会跟{p}一起去{c}。

hurts_for: s=P b=body n=short a=body
{s.poss} {b} and {a} have hurt for {n}.
{s}的{b}和{a}疼了{n}了。

medicine: s=S n=few m=two_to_four d=nights
{s} {s.have} to take {n} tablets {m.times} a day for {d}.
{s}得吃{d}药，一天{m}次，每次{n}片。

ill_so: s=S i=illness a=repeat t=near_day
{s} had {i} {t}, so {s.pro} couldn't {a}.
{s}{t}{i}了，所以不能{a}。

weather_but: x=time_of_year c=city a=weather_adj y=time_of_year b=weather_adj
The weather in {c} is {a} in {x}, but {b} in {y}.
{c}的天气{x}很{a}，但是{y}很{b}。

weather_compare: c=city a=weather_adj d=city x=time_of_year
It is {a.comp} in {c} than in {d} in {x}.
{x}{c}比{d}{a}。

will_weather: w=weather c=city t=future s=S o=outer
It will {w} in {c} {t}, so {s} should bring {o.a}.
{c}{t}会{w}，所以{s}应该带{o.one}。

weather_stopped: w=weather c=city t=near_day s=S a=outside
It {w.past} in {c} {t}, so {s} didn't {a}.
{c}{t}{w}了，所以{s}没{a}。

degrees: n=degrees c=city a=temperature t=near_day
It is {n} degrees in {c} today, {a.comp} than {t}.
{c}今天{n}度，比{t}{a}。

book_room: s=S r=room n=nights d=date
{s} would like to book {r.a} for {n} from {d}.
{s}想从{d}起订{r.one}，住{n}。

broken_in_room: p=P o=room_thing l=floor
The {o} in {p.poss} room on the {l.floor} floor is broken.
{p}{l.floor}楼房间里的{o}坏了。

can_repair: o=machine p=P t=soon q=Q
Can {q} repair {p.poss} {o} {t}?
{q}{t}能修{p}的{o}吗？

meal_hours: m=meal h=@m.next l=floor
{m} on the {l.floor} floor starts at {h}.
{l.floor}楼的{m}{h}开始。

facility: f=facility l=anyplace v=opening t=on_days h=clock_one_digit
The {f} near the {l} {v} at {h} {t}.
{l}附近的{f}{t}{h}{v}。

check_out: s=S d=daypart h=@d.clock p=P
{s} will check out with {p.obj} at {h} {d}.
{s}{d}{h}会跟{p}一起退房。

class_at: s=S b=subject d=daypart h=@d.clock
{s} {s.have} {b.a} class at {h} {d}.
{s}{d}{h}有{b}课。

subject_compare: s=S a=subject m=subject_adj b=subject
{s} {s?think|thinks} {a} is {m.comp} than {b}.
{s}觉得{a}比{b}{m}。

studied_abroad: s=S b=subject c=country n=years
{s} studied {b} at a university in {c} for {n}.
{s}在{c}的一所大学学了{n}{b}。

exam: b=subject d=daypart h=@d.clock s=Q
{s.poss} {b} exam is at {h} {d}.
{s}的{b}考试是{d}{h}。

teaches: s=S1 b=subject pl=academy c=city
{s} {s?teach|teaches} {b} at {pl.a} in {c}.
{s}在{c}的一{pl.mw}{pl}教{b}。

which_person: s=Q j=job a=placed pl=@a.places
{s.do} {s} know the {j} who is {a.ing} {pl.at}?
{s}认识正在{pl}{a}的那个{j}吗？

helped: j=job s=S t=near c=country
The {j} who helped {s.obj} {t} is from {c}.
{t}帮助{s}的那个{j}是{c}人。

where_met: pl=eatery s=S p=P t=past a=place_adj
The {pl} where {s} met {p.obj} {t} is very {a}.
{s}{t}见{p}的那{pl.mw}{pl}非常{a}。

saw_animals: s=S n=num a=animal m=num b=animal t=near
{s} saw {n} {a.pl} and {m} {b.pl} at the zoo {t}.
{s}{t}在动物园看到了{n}{a.mw}{a}和{m}{b.mw}{b}。

watched: s=S n=few o=show p=P t=past
{s} watched {n} {o.pl} with {p.obj} {t}.
{s}{t}跟{p}一起看了{n}{o.mw}{o}。

reserve: s=S n=few k=ticket p=P t=soon
{s} will book {n} {k.pl} for {p.obj} {t}.
{s}{t}会给{p}订{n}{k.mw}{k}。

place_compare: a=public m=place_adj b=public c=city
The {a} in {c} is {m.comp} than the {b}.
{c}的{a}比{b}{m}。

waiting: s=S p=P pl=public n=wait
{s} waited for {p.obj} {pl.at} for {n}.
{s}在{pl}等了{p}{n}。

although: s=S m=mood_bad a=home t=near_day
Although {s} {s.was} {m}, {s.pro} still {a.past} {t}.
虽然{s}{t}很{m}，但是{s.pro}还是{a}了。

send_to: s=S n=few o=mail p=P c=city
{s} sent {n} {o.pl} to {p.obj} from {c}.
{s}从{c}给{p}寄了{n}{o.mw}{o}。

write_to: s=Q n=few o=note p=P t=soon
Will {s} write {n} {o.pl} to {p.obj} {t}?
{s}{t}会给{p}写{n}{o.mw}{o}吗？

invite: s=S p=P m=main_meal pl=eatery t=soon_day
{s} invited {p.obj} to have {m} at the {pl} {t}.
{s}请{p}{t}去{pl}吃{m}。
"""
